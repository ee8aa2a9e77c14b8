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
        "unless every token is one."
    )
    count_over: tuple[MeshDim, ...]
    is_every_token: bool = False
    """Whether every token is a target: then ranks know their number without the others."""

    def effects(self) -> Effects:
        return Effects(
            reads=(Resource.DATA,), writes=(Resource.DATA, Resource.BATCH), communicates=self.count_over
        )
