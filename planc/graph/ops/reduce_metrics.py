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
        "Sums the loss over the ranks that saw different tokens; all ranks learn whether one was told to end."
    )
    over: tuple[MeshDim, ...]
    agree_over: tuple[MeshDim, ...] = ()
    """Further mesh dims, whose ranks have one loss but may not all have heard that the run is to end."""

    def effects(self) -> Effects:
        return Effects(
            reads=(Resource.LOSS,), writes=(Resource.METRICS,), communicates=(*self.over, *self.agree_over)
        )
