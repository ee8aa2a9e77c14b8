"""Row-parallel linear layers."""

from planc.inventory.schema import LINEAR_KINDS
from planc.styles.style import Style
from planc.vocab import Partial, Replicate, Shard

ROWWISE = Style(
    name="rowwise",
    usual="model.layers.*.mlp.down_proj",
    doc="Shards a linear layer's input features, and reduces the partial outputs over the ranks.",
    kinds=LINEAR_KINDS,
    parameters={"weight": Shard(1), "bias": Replicate()},
    computes_on=Shard(-1),
    input=Shard(-1),
    yields=Partial(),
    output=Replicate(),
    options=("input", "output"),
)

ROWWISE_SPLIT_INPUT = Style(
    name="rowwise_split_input",
    usual="model.layers.*.self_attn.o_proj",
    doc="Like rowwise, for an input that is whole on every rank: each rank takes its own features of it.",
    kinds=LINEAR_KINDS,
    parameters={"weight": Shard(1), "bias": Replicate()},
    computes_on=Shard(-1),
    input=Replicate(),
    yields=Partial(),
    output=Replicate(),
    options=("output",),
)
