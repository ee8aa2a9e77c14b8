"""`profile.start`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Stage
from planc.record import record


@record(kw_only=True)
class StartProfile(Op):
    op: Literal["profile.start"] = "profile.start"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = "When due, starts tracing every rank."
    first_step: int
    last_step: int
    memory: bool
    """Whether to record CUDA allocations too."""

    def effects(self) -> Effects:
        return Effects()
