"""Divided embedding tables."""

from planc.inventory.schema import Kind
from planc.styles.style import Style
from planc.vocab import Replicate, Shard

EMBEDDING_ROWWISE = Style(
    name="embedding_rowwise",
    doc="Divides an embedding table by vocabulary rows; each looks up its own, and the results are summed.",
    kinds=(Kind.EMBEDDING,),
    parameters={"weight": Shard(0)},
    computes_on=Replicate(),
    input=Replicate(),
    output=Replicate(),
    options=("output",),
)

EMBEDDING_COLWISE = Style(
    name="embedding_colwise",
    doc="Divides an embedding table by features; the output is gathered unless the plan says otherwise.",
    kinds=(Kind.EMBEDDING,),
    parameters={"weight": Shard(1)},
    computes_on=Replicate(),
    input=Replicate(),
    output=Replicate(),
    options=("output",),
)
