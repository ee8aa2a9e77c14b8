"""Projections to keys and values with fewer heads than ranks."""

from planc.inventory.schema import LINEAR_KINDS
from planc.styles.style import Style
from planc.vocab import Replicate, Shard

REPLICATED_KV = Style(
    name="replicated_kv",
    usual="model.layers.*.self_attn.{k,v}_proj",
    doc=(
        "Like colwise, for projections to fewer key/value heads than there are ranks. Weights are "
        "replicated. A rank computes the head that its queries read, which its neighbors compute too, and "
        "the weights' gradients are reduced over the ranks. Of a layer that also holds the queries, a rank "
        "computes its own."
    ),
    kinds=LINEAR_KINDS,
    parameters={},
    computes_on=Replicate(),
    input=Replicate(),
    reads_by_parts=True,
    yields=Shard(-1),
    output=Shard(-1),
    reduces_parameter_gradients=True,
    shares_heads=True,
)
