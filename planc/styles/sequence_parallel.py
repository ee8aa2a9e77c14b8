"""Norms on a sharded sequence."""

from planc.inventory.schema import Kind
from planc.styles.style import Style
from planc.vocab import Shard

SEQUENCE_PARALLEL = Style(
    name="sequence_parallel",
    doc=(
        "Runs a norm on a sharded sequence dimension. Its parameters are replicated, and their gradients, "
        "each from a rank's own tokens, are reduced over the ranks."
    ),
    kinds=(Kind.NORM,),
    parameters={},
    computes_on=Shard(1),
    input=Shard(1),
    output=Shard(1),
    options=("sequence_dim",),
    reduces_parameter_gradients=True,
)
