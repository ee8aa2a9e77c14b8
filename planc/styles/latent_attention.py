"""The replicated projection of latent attention."""

from planc.inventory.schema import Kind
from planc.styles.edges import READ_BY_PARTS, WHOLE, At, Edge
from planc.styles.style import Style
from planc.vocab import Replicate

MLA_KV_A_PROJ = Style(
    name="mla_kv_a_proj",
    usual="model.layers.*.self_attn.kv_a_proj_with_mqa",
    doc=(
        "Replicates the projection to latent keys and values. Its rotary part goes directly to each rank's "
        "own heads and not through a sharded layer, so its gradient is reduced."
    ),
    kinds=(Kind.LINEAR,),
    parameters={},
    computes_on=Replicate(),
    input=Replicate(),
    output=Replicate(),
    meets_heads=True,
    more_edges=(Edge(At.ROTARY_OUTPUT, WHOLE, READ_BY_PARTS),),
)
