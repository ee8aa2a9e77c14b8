"""Sharded embedding tables."""

from planc.inventory.schema import Kind
from planc.styles.style import Style
from planc.vocab import Partial, Replicate, Shard

EMBEDDING_ROWWISE = Style(
    name="embedding_rowwise",
    usual="model.embed_tokens",
    doc="Shards an embedding table by vocabulary rows: each rank looks up its own, and the results add up.",
    kinds=(Kind.EMBEDDING,),
    parameters={"weight": Shard(0)},
    computes_on=Replicate(),
    input=Replicate(),
    yields=Partial(),
    output=Replicate(),
    options=("output",),
)

EMBEDDING_COLWISE = Style(
    name="embedding_colwise",
    usual="model.embed_tokens",
    doc="Shards an embedding table by features; gathers the output unless the plan sets another.",
    kinds=(Kind.EMBEDDING,),
    parameters={"weight": Shard(1)},
    computes_on=Replicate(),
    input=Replicate(),
    yields=Shard(-1),
    output=Replicate(),
    options=("output",),
)
