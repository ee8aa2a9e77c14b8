"""`loss`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.vocab import MeshDim


@record(kw_only=True)
class ComputeLoss(Op):
    op: Literal["loss"] = "loss"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = "Sums the local cross entropy and divides by the step's global token count."
    vocab_over: tuple[MeshDim, ...]
    """The mesh dim that shards the logits' vocabulary, if any."""

    @property
    def unstable(self) -> str:
        return "loss_parallel: experimental in PyTorch, and subject to change" if self.vocab_over else ""

    def effects(self) -> Effects:
        return Effects(
            reads=(Resource.LOGITS, Resource.LOCAL_BATCH),
            writes=(Resource.LOSS,),
            communicates=self.vocab_over,
        )
