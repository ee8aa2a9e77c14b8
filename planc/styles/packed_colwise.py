"""Column-parallel linear layers that hold two in one."""

from planc.inventory.schema import Kind
from planc.styles.style import Style
from planc.vocab import Replicate, Shard, StridedShard

PACKED_COLWISE = Style(
    name="packed_colwise",
    doc=(
        "As colwise, for a layer that packs two of one width, such as the gate and the up projection of an "
        "MLP: each is divided, and a rank has its columns of both."
    ),
    kinds=(Kind.LINEAR,),
    parameters={"weight": StridedShard(0, 2), "bias": StridedShard(0, 2)},
    computes_on=Replicate(),
    input=Replicate(),
    output=Shard(-1),
    options=("input",),
)
