"""`schedule.step`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record


@record(kw_only=True)
class StepSchedule(Op):
    op: Literal["schedule.step"] = "schedule.step"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = "Advances the learning rate."

    def effects(self) -> Effects:
        return Effects(reads=(Resource.SCHEDULE,), writes=(Resource.SCHEDULE, Resource.OPTIMIZER))
