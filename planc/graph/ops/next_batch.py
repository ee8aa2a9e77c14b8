"""`batch.next`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.vocab import MeshDim


@record(kw_only=True)
class NextBatch(Op):
    op: Literal["batch.next"] = "batch.next"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = (
        "Takes this rank's micro-batches of the step, and counts the step's target tokens over all ranks "
        "unless `num_labels` is set."
    )
    count_over: tuple[MeshDim, ...]
    num_labels: int | None = None
    """The step's target tokens over all ranks, if every token is one."""

    def effects(self) -> Effects:
        return Effects(
            reads=(Resource.DATA,), writes=(Resource.DATA, Resource.BATCH), communicates=self.count_over
        )
