"""Replicated modules."""

from planc.inventory.schema import LINEAR_KINDS, Kind
from planc.styles.style import Style
from planc.vocab import Replicate, Shard

REPLICATE = Style(
    name="replicate",
    usual="lm_head",
    doc="Replicates a module on every rank: all ranks compute the same from the same input.",
    kinds=(*LINEAR_KINDS, Kind.EMBEDDING, Kind.NORM, Kind.OTHER),
    parameters={},
    computes_on=Replicate(),
    input=Replicate(),
    output=Replicate(),
)

REPLICATED_WITH_GRAD_ALLREDUCE = Style(
    name="replicated_with_grad_allreduce",
    usual="model.layers.*.self_attn.{q,k}_norm",
    doc=(
        "Replicates parameters whose activations differ between ranks, such as query and key norms on "
        "sharded heads, and reduces their gradients over the ranks."
    ),
    kinds=(Kind.NORM,),
    parameters={},
    computes_on=Shard(-1),
    input=Shard(-1),
    output=Shard(-1),
    reduces_parameter_gradients=True,
)
