"""`pipeline.receive`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.vocab import MeshDim


@record(kw_only=True)
class ReceiveHidden(Op):
    op: Literal["pipeline.receive"] = "pipeline.receive"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = "Receives one micro-batch's hidden states, or their gradients."
    what: Literal["activations", "gradients"]
    """Activations come from the stage before, gradients from the stage after."""
    over: tuple[MeshDim, ...]

    def effects(self) -> Effects:
        read = Resource.LOCAL_BATCH if self.what == "activations" else Resource.LOSS
        return Effects(reads=(read,), writes=(Resource.HIDDEN,), communicates=self.over)
