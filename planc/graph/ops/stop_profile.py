"""`profile.stop`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Stage
from planc.record import record


@record(kw_only=True)
class StopProfile(Op):
    op: Literal["profile.stop"] = "profile.stop"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = "After the last step to trace, writes each rank's trace to the run directory."
    last_step: int

    def effects(self) -> Effects:
        return Effects()
