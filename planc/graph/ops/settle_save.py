"""`checkpoint.settle`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.vocab import MeshDim


@record(kw_only=True)
class SettleSave(Op):
    op: Literal["checkpoint.settle"] = "checkpoint.settle"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = (
        "Agrees on all ranks whether the running save has ended; the last step waits for it."
    )
    over: tuple[MeshDim, ...]

    def effects(self) -> Effects:
        return Effects(writes=(Resource.CHECKPOINT,), communicates=self.over)
