"""Modules that stay whole."""

from planc.inventory.schema import Kind
from planc.styles.style import Style
from planc.vocab import Replicate, Shard

REPLICATE = Style(
    name="replicate",
    doc="Leaves a module whole on every rank: all ranks compute the same from the same input.",
    kinds=(Kind.LINEAR, Kind.EMBEDDING, Kind.NORM, Kind.OTHER),
    parameters={},
    computes_on=Replicate(),
    input=Replicate(),
    output=Replicate(),
)

REPLICATED_WITH_GRAD_ALLREDUCE = Style(
    name="replicated_with_grad_allreduce",
    doc=(
        "Keeps a parameter whole where each rank's activations differ, as for the query and key norms of "
        "divided heads: gradients are summed over the ranks."
    ),
    kinds=(Kind.NORM,),
    parameters={},
    computes_on=Shard(-1),
    input=Shard(-1),
    output=Shard(-1),
    reduces_parameter_gradients=True,
)
