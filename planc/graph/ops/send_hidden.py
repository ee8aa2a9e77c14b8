"""`pipeline.send`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.vocab import MeshDim


@record(kw_only=True)
class SendHidden(Op):
    op: Literal["pipeline.send"] = "pipeline.send"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = "Sends one micro-batch's hidden states, or their gradients, without waiting."
    what: Literal["activations", "gradients"]
    """Activations go to the stage after, gradients to the stage before."""
    over: tuple[MeshDim, ...]

    def effects(self) -> Effects:
        read = Resource.LOGITS if self.what == "activations" else Resource.GRADIENTS
        return Effects(reads=(read,), communicates=self.over)
