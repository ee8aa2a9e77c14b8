"""Column-parallel linear layers that pack two projections."""

from planc.inventory.schema import Kind
from planc.styles.style import Style
from planc.vocab import Replicate, Shard, StridedShard

PACKED_COLWISE = Style(
    name="packed_colwise",
    usual="model.layers.*.mlp.gate_up_proj",
    doc=(
        "Like colwise, for a layer that packs two projections of one width, such as gate and up of an "
        "MLP: each is sharded, and a rank gets its columns of both."
    ),
    kinds=(Kind.LINEAR,),
    parameters={"weight": StridedShard(0, 2), "bias": StridedShard(0, 2)},
    computes_on=Replicate(),
    input=Replicate(),
    reads_by_parts=True,
    yields=Shard(-1),
    output=Shard(-1),
    options=("input",),
)
