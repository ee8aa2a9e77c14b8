"""The projection of latent attention that stays whole."""

from planc.inventory.schema import Kind
from planc.styles.style import Style
from planc.vocab import Replicate

MLA_KV_A_PROJ = Style(
    name="mla_kv_a_proj",
    doc=(
        "Keeps the projection to latent keys and values whole. Its rotary part goes to every rank's own "
        "heads and not through a divided layer, so what comes back from them is summed."
    ),
    kinds=(Kind.LINEAR,),
    parameters={},
    computes_on=Replicate(),
    input=Replicate(),
    output=Replicate(),
    meets_heads=True,
)
