"""`checkpoint.save`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record


@record(kw_only=True)
class SaveCheckpoint(Op):
    op: Literal["checkpoint.save"] = "checkpoint.save"
    stage: ClassVar[Stage] = Stage.SAVE
    summary: ClassVar[str] = "Writes all training state into a new step directory, committed by rename."
    every_steps: int | None
    at_end: bool
    keep_last: int
    mode: Literal["sync", "async"] = "sync"
    """async: training continues while a thread writes a copy; `checkpoint.settle` detects its end."""
    when_busy: Literal["wait", "skip"] | None = None
    """The action of an asynchronous save while the previous one is running."""

    def effects(self) -> Effects:
        return Effects(
            reads=(Resource.WEIGHTS, Resource.OPTIMIZER, Resource.SCHEDULE, Resource.DATA),
            writes=(Resource.CHECKPOINT,),
        )
