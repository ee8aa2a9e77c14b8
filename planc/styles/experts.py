"""Experts of a mixture, all of them on every rank, each divided."""

from planc.inventory.schema import Kind
from planc.styles.style import Style
from planc.vocab import Replicate

MOE_TP_EXPERTS = Style(
    name="moe_tp_experts",
    doc=(
        "Divides every expert of a mixture by its intermediate features, and sums the experts' outputs. "
        "What comes back to the tokens and to the router's weights is summed too: the router stays whole."
    ),
    kinds=(Kind.OTHER,),
    parameters={},
    computes_on=Replicate(),
    input=Replicate(),
    output=Replicate(),
    placed_by_model=True,
)
