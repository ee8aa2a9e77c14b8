"""`replicas.compare`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.vocab import MeshDim


@record(kw_only=True)
class CompareReplicas(Op):
    op: Literal["replicas.compare"] = "replicas.compare"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = "When due, compares the bits of every parameter that several ranks hold."
    every_steps: int
    over: tuple[MeshDim, ...]

    def is_due(self, *, step: int, num_steps: int) -> bool:
        """Whether replicas are compared after a step."""
        return step % self.every_steps == 0

    def effects(self) -> Effects:
        return Effects(reads=(Resource.WEIGHTS,), communicates=self.over)
