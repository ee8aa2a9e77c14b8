"""Styles of linear layers."""

from __future__ import annotations

from planc.inventory.schema import LINEAR_KINDS, Kind
from planc.styles.edges import READ_BY_PARTS, WHOLE, At, Edge
from planc.styles.style import Boundary, Style
from planc.vocab import Partial, Replicate, Shard, StridedShard

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


_NUM_PARTS = 2
"""The projections of one width in a layer of which a plan writes nothing."""

PACKED_COLWISE = Style(
    name="packed_colwise",
    usual="model.layers.*.mlp.gate_up_proj",
    doc=(
        "Like colwise, for a layer that holds several projections in sequence: each is sharded, and a rank "
        "gets its columns of every one. Of two with one width, such as gate and up of an MLP, unless `parts` "
        "has another number, or `widths` lists unequal widths: queries, keys and values."
    ),
    kinds=LINEAR_KINDS,
    parameters={"weight": StridedShard(0, _NUM_PARTS), "bias": StridedShard(0, _NUM_PARTS)},
    computes_on=Replicate(),
    input=Replicate(),
    reads_by_parts=True,
    yields=Shard(-1),
    output=Shard(-1),
    options=("input", "parts", "widths"),
)


def packing_options(widths: tuple[int, ...]) -> Boundary:
    """The options with which the style is for a layer that holds projections of these widths."""
    if len(set(widths)) > 1:
        return Boundary(widths=widths)
    return Boundary() if len(widths) == _NUM_PARTS else Boundary(parts=len(widths))


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


MLA_KV_A_PROJ = Style(
    name="mla_kv_a_proj",
    usual="model.layers.*.self_attn.kv_a_proj_with_mqa",
    doc=(
        "Replicates the projection to latent keys and values. Its rotary part goes directly to each rank's "
        "own heads and not through a sharded layer, so its gradient is reduced."
    ),
    kinds=(Kind.LINEAR,),
    parameters={},
    computes_on=Replicate(),
    input=Replicate(),
    output=Replicate(),
    meets_heads=True,
    more_edges=(Edge(At.ROTARY_OUTPUT, WHOLE, READ_BY_PARTS),),
)
