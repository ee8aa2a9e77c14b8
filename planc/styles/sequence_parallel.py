"""Norms on a divided sequence."""

from planc.inventory.schema import Kind
from planc.styles.style import Style
from planc.vocab import Shard

SEQUENCE_PARALLEL = Style(
    name="sequence_parallel",
    doc=(
        "Runs a norm on a divided sequence dimension. Its parameters stay whole, and their gradients, each "
        "rank's from its own tokens, are summed."
    ),
    kinds=(Kind.NORM,),
    parameters={},
    computes_on=Shard(1),
    input=Shard(1),
    output=Shard(1),
    options=("sequence_dim",),
    reduces_parameter_gradients=True,
)
