"""Column-parallel linear layers that hold several projections in sequence."""

from planc.inventory.schema import LINEAR_KINDS
from planc.styles.style import Boundary, Style
from planc.vocab import Replicate, Shard, StridedShard

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
