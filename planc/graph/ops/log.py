"""`log`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.vocab import MeshDim


@record(kw_only=True)
class Log(Op):
    op: Literal["log"] = "log"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = "Writes the step's metrics to the run directory and the display."
    every_steps: int
    """The last step is due as well, and one with an evaluation."""
    over: tuple[MeshDim, ...]
    """All mesh dims: a line has the most of any rank's memory and time."""

    def is_due(self, *, step: int, num_steps: int) -> bool:
        """Whether a step is logged, even without an evaluation."""
        return step % self.every_steps == 0 or step == num_steps

    def effects(self) -> Effects:
        return Effects(reads=(Resource.METRICS,), communicates=self.over)
