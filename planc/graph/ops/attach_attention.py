"""`attention.attach`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.vocab import MeshDim


@record(kw_only=True)
class AttachAttention(Op):
    op: Literal["attention.attach"] = "attention.attach"
    stage: ClassVar[Stage] = Stage.BUILD
    summary: ClassVar[str] = (
        "Gives every attention module planc's exact causal attention, or keeps the model's own."
    )
    kind: str
    """plain, ring, allgather, ulysses, or eager for the model's own code."""
    balance: str
    """headtail or none."""
    over: tuple[MeshDim, ...]
    isolates: bool = False
    """Whether tokens attend only to their own document."""

    @property
    def unstable(self) -> str:
        return "collectives that autograd differentiates: private in PyTorch" if self.over else ""

    def effects(self) -> Effects:
        return Effects(reads=(Resource.MODEL,), writes=(Resource.MODEL,), communicates=self.over)
