"""`log`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record


@record(kw_only=True)
class Log(Op):
    op: Literal["log"] = "log"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = "Writes the step's metrics to the run directory and the display."
    every_steps: int

    def effects(self) -> Effects:
        return Effects(reads=(Resource.METRICS,))
