"""Column-parallel linear layers."""

from planc.inventory.schema import LINEAR_KINDS
from planc.styles.style import Style
from planc.vocab import Replicate, Shard

COLWISE = Style(
    name="colwise",
    usual="model.layers.*.mlp.{gate,up}_proj",
    doc="Shards a linear layer's output features: each rank computes its own columns of the output.",
    kinds=LINEAR_KINDS,
    parameters={"weight": Shard(0), "bias": Shard(0)},
    computes_on=Replicate(),
    input=Replicate(),
    reads_by_parts=True,
    yields=Shard(-1),
    output=Shard(-1),
    options=("input", "output"),
)

COLWISE_GATHER_OUTPUT = Style(
    name="colwise_gather_output",
    usual="lm_head",
    doc="Like colwise, and gathers the output: every rank gets all features.",
    kinds=LINEAR_KINDS,
    parameters={"weight": Shard(0), "bias": Shard(0)},
    computes_on=Replicate(),
    input=Replicate(),
    reads_by_parts=True,
    yields=Shard(-1),
    output=Replicate(),
    options=("input",),
)
