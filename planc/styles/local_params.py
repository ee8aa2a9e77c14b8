"""Parameters of an attention's own, beside its projections."""

from planc.inventory.schema import Kind
from planc.styles.style import Style
from planc.vocab import Replicate

LOCAL_PARAMS = Style(
    name="local_params",
    doc=(
        "Divides parameters that a module holds beside divided layers, such as one number for each head: "
        "every rank computes with its own."
    ),
    kinds=(Kind.OTHER,),
    parameters={},
    computes_on=Replicate(),
    input=Replicate(),
    output=Replicate(),
    placed_by_model=True,
)
