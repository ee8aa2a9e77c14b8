"""`grads.sync`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.vocab import MeshDim


@record(kw_only=True)
class SyncGradients(Op):
    op: Literal["grads.sync"] = "grads.sync"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = (
        "Reduces the remaining partial gradients in one message, to their parameters' placements."
    )
    over: tuple[MeshDim, ...]

    def effects(self) -> Effects:
        return Effects(
            reads=(Resource.GRADIENTS,), writes=(Resource.SYNCED_GRADIENTS,), communicates=self.over
        )
