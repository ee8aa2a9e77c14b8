"""`pipeline.split`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.vocab import DType, MeshDim


@record(kw_only=True)
class SplitPipeline(Op):
    op: Literal["pipeline.split"] = "pipeline.split"
    stage: ClassVar[Stage] = Stage.PIPELINE
    summary: ClassVar[str] = "Keeps the modules of a rank's stages; the others pass on what they get."
    stages: tuple[tuple[str, ...], ...]
    """The modules of each stage. Stage s is on the pp rank s % the number of ranks."""
    blocks: str
    """The module list whose members are the layers."""
    head: str
    """What computes the logits: the linear layer, or what is around it in the last stage."""
    shape: tuple[int, int, int]
    """Of the hidden states that one stage sends to the next: [micro batch, local sequence, hidden]."""
    dtype: DType
    """Of those hidden states, and of their gradients."""
    over: tuple[MeshDim, ...]
    max_sends: int
    """The most messages of one kind, activations or gradients, that a rank has under way: it waits for the
    oldest before it sends another."""
    ties: tuple[tuple[str, ...], ...] = ()
    """The names of each weight that the first and the last stage both have, the first stage's first."""
    deferred: tuple[str, ...] = ()
    """The linear layers whose weights have gradients by `backward.weights`, if the orders have them apart."""

    on_shards: tuple[str, ...] = ()
    """The modules before and after the layers, and `blocks` for the last layer, whose outputs tp shards along
    the sequence. What runs in their places in other stages gives as many positions."""

    @property
    def unstable(self) -> str:
        return ""

    def effects(self) -> Effects:
        return Effects(reads=(Resource.MODEL,), writes=(Resource.MODEL,))
