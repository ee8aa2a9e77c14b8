"""`checkpoint.resume`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record


@record(kw_only=True)
class ResumeCheckpoint(Op):
    op: Literal["checkpoint.resume"] = "checkpoint.resume"
    stage: ClassVar[Stage] = Stage.RESUME
    summary: ClassVar[str] = "Resumes from the newest checkpoint in the run directory, if there is one."
    policy: str

    def effects(self) -> Effects:
        return Effects(
            reads=(Resource.MODEL, Resource.OPTIMIZER, Resource.SCHEDULE, Resource.DATA),
            writes=(Resource.WEIGHTS, Resource.OPTIMIZER, Resource.SCHEDULE, Resource.DATA),
        )
