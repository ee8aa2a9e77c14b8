"""`backward`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.vocab import MeshDim


@record(kw_only=True)
class Backward(Op):
    op: Literal["backward"] = "backward"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = (
        "Runs the backward pass; sharded units and whole replicas reduce their gradients on the last micro "
        "step."
    )
    over: tuple[MeshDim, ...]

    def effects(self) -> Effects:
        return Effects(reads=(Resource.LOSS,), writes=(Resource.GRADIENTS,), communicates=self.over)
