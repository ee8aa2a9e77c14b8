"""Experts of a mixture, each of them sharded over all ranks."""

from planc.inventory.schema import Kind
from planc.styles.edges import READ_BY_PARTS, WHOLE, At, Edge
from planc.styles.style import Style
from planc.vocab import Partial, Replicate

MOE_TP_EXPERTS = Style(
    name="moe_tp_experts",
    usual="model.layers.*.mlp.experts",
    doc=(
        "Shards every expert of a mixture by its intermediate features, and reduces the experts' outputs. "
        "Gradients of the tokens and the router's weights are reduced too; the router stays replicated."
    ),
    kinds=(Kind.OTHER,),
    parameters={},
    computes_on=Replicate(),
    input=Replicate(),
    reads_by_parts=True,
    yields=Partial(),
    output=Replicate(),
    placed_by_model=True,
    more_edges=(Edge(At.ROUTING_WEIGHTS, WHOLE, READ_BY_PARTS),),
)
