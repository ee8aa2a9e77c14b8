"""`loss`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.vocab import LogitsStep, MeshDim


@record(kw_only=True)
class ComputeLoss(Op):
    op: Literal["loss"] = "loss"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = "Sums the local cross entropy and divides by the step's global token count."
    vocab_over: tuple[MeshDim, ...]
    """The mesh dim that shards the logits' vocabulary, if any."""
    chunks: int = 1
    """Parts of the tokens whose logits exist at a time. With several, the forward of the head computes each
    part's logits, loss and gradients in turn."""
    head: str | None = None
    """The linear layer that computes the logits, with several chunks."""
    logits: tuple[LogitsStep, ...] = ()
    """What the model makes of the head's output, with several chunks."""

    @property
    def unstable(self) -> str:
        return "loss_parallel: experimental in PyTorch, and subject to change" if self.vocab_over else ""

    def effects(self) -> Effects:
        return Effects(
            reads=(Resource.LOGITS, Resource.LOCAL_BATCH),
            writes=(Resource.LOSS,),
            communicates=self.vocab_over,
        )
