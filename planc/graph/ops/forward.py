"""`forward`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.vocab import MeshDim


@record(kw_only=True)
class Forward(Op):
    op: Literal["forward"] = "forward"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = "Runs the model on the local batch."
    over: tuple[MeshDim, ...]
    """The mesh dims that the model's own layers and units communicate over."""

    def effects(self) -> Effects:
        return Effects(
            reads=(Resource.LOCAL_BATCH, Resource.WEIGHTS), writes=(Resource.LOGITS,), communicates=self.over
        )
