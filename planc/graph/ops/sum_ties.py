"""`grads.sum_ties`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.vocab import MeshDim


@record(kw_only=True)
class SumTies(Op):
    op: Literal["grads.sum_ties"] = "grads.sum_ties"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = (
        "Sums the gradients of each weight that the first and the last stage of a pipeline both have, over "
        "these two: the copies stay equal."
    )
    over: tuple[MeshDim, ...]

    def effects(self) -> Effects:
        summed = (Resource.SYNCED_GRADIENTS,)
        return Effects(reads=summed, writes=summed, communicates=self.over)
