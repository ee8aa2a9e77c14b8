"""`schedule.build`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record


@record(kw_only=True)
class BuildSchedule(Op):
    op: Literal["schedule.build"] = "schedule.build"
    stage: ClassVar[Stage] = Stage.OPTIMIZER
    summary: ClassVar[str] = "Sets the learning-rate schedule."
    kind: str
    warmup_steps: int
    decay_steps: int | None = None
    """The number of last steps in which a `wsd` decays; None for the other kinds."""
    min_factor: float
    num_steps: int

    def effects(self) -> Effects:
        return Effects(reads=(Resource.OPTIMIZER,), writes=(Resource.SCHEDULE,))
