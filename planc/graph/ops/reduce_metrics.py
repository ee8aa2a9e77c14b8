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
    summary: ClassVar[str] = (
        "Sums the loss over ranks with different tokens, and shares whether any rank got a stop signal."
    )
    over: tuple[MeshDim, ...]
    agree_over: tuple[MeshDim, ...] = ()
    """Other mesh dims, whose ranks have the same loss but may not all have got the stop signal."""

    def effects(self) -> Effects:
        return Effects(
            reads=(Resource.LOSS,), writes=(Resource.METRICS,), communicates=(*self.over, *self.agree_over)
        )
