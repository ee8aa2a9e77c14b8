"""`backward.weights`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.vocab import MeshDim


@record(kw_only=True)
class ComputeWeightGradients(Op):
    op: Literal["backward.weights"] = "backward.weights"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = (
        "Computes the gradients of weights that the backward pass of one micro-batch has deferred; sharded "
        "units and whole replicas reduce theirs on the last micro step."
    )
    over: tuple[MeshDim, ...]

    def effects(self) -> Effects:
        gradients = (Resource.GRADIENTS,)
        return Effects(reads=gradients, writes=gradients, communicates=self.over)
