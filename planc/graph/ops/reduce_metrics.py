"""`metrics.reduce`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.vocab import MeshDim


@record(kw_only=True)
class ReduceMetrics(Op):
    op: Literal["metrics.reduce"] = "metrics.reduce"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = "Sums the loss over the ranks that saw different tokens."
    over: tuple[MeshDim, ...]

    def effects(self) -> Effects:
        return Effects(reads=(Resource.LOSS,), writes=(Resource.METRICS,), communicates=self.over)
