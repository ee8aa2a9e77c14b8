"""`cp.shard`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.vocab import MeshDim


@record(kw_only=True)
class ShardContext(Op):
    op: Literal["cp.shard"] = "cp.shard"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = "Takes one micro-batch and this rank's shard of every sequence in it."
    balance: str
    buffers: tuple[tuple[str, int], ...]
    """Sequence tensors and their sharded dimension."""
    over: tuple[MeshDim, ...]
    first_position: int | None = None
    """The first position of a sequence, if the model's is not 0."""
    uncounted_token: int | None = None
    """The id of tokens that do not advance the position and get the position before the first."""

    def effects(self) -> Effects:
        return Effects(reads=(Resource.BATCH,), writes=(Resource.LOCAL_BATCH,))
