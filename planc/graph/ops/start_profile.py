"""`profile.start`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Stage
from planc.record import record


@record(kw_only=True)
class StartProfile(Op):
    op: Literal["profile.start"] = "profile.start"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = "Where due, starts to trace what every rank does."
    first_step: int
    last_step: int
    memory: bool
    """Whether CUDA allocations are recorded too."""

    def effects(self) -> Effects:
        return Effects()
