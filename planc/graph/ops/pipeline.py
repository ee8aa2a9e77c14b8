"""Ops that split the model into pipeline stages and move hidden states between them."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from planc.graph.consequence import DERIVED, layout
from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.vocab import DType, MeshDim


@record(kw_only=True)
class SplitPipeline(Op):
    op: Literal["pipeline.split"] = "pipeline.split"
    stage: ClassVar[Stage] = Stage.PIPELINE
    summary: ClassVar[str] = "Keeps the modules of a rank's stages; the others pass on what they get."
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.MESH, Resource.MODEL), writes=(Resource.MODEL, Resource.PIPELINE)
    )
    stages: Annotated[tuple[tuple[str, ...], ...], layout("pipeline", "pipeline stages")]
    """The modules of each stage. Stage s is on the pp rank s % the number of ranks."""
    blocks: Annotated[str, DERIVED]
    """The module list whose members are the layers."""
    head: Annotated[str, DERIVED]
    """The module that computes the logits: the linear layer, or what is around it in the last stage."""
    shape: Annotated[tuple[int, int, int], DERIVED]
    """The shape of the hidden states that one stage sends to the next: [micro batch, local sequence,
    hidden]."""
    dtype: Annotated[DType, DERIVED]
    """The dtype of those hidden states, and of their gradients."""
    over: Annotated[tuple[MeshDim, ...], DERIVED]
    max_sends: Annotated[int, DERIVED]
    """The most messages of one kind, activations or gradients, that a rank has under way: it waits for the
    oldest before it sends another."""
    ties: Annotated[tuple[tuple[str, ...], ...], layout("pipeline", "weights in two stages")] = ()
    """The names of each weight that the first and the last stage both have, the first stage's first."""
    deferred: Annotated[tuple[str, ...], DERIVED] = ()
    """The linear layers whose weights have gradients by `backward.weights`, if the orders have them apart."""

    on_shards: Annotated[tuple[str, ...], DERIVED] = ()
    """The modules before and after the layers, and `blocks` for the last layer, whose outputs tp shards along
    the sequence. What runs in their places in other stages gives as many positions."""

    @property
    def unstable(self) -> str:
        return ""

    @property
    def communicates(self) -> tuple[MeshDim, ...]:
        return ()


@record(kw_only=True)
class ReceiveHidden(Op):
    op: Literal["pipeline.receive"] = "pipeline.receive"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = "Receives one micro-batch's hidden states, or their gradients."
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.PIPELINE, Resource.LOCAL_BATCH), writes=(Resource.HIDDEN,)
    )
    what: Annotated[Literal["activations", "gradients"], DERIVED]
    """Activations come from the stage before, gradients from the stage after."""
    over: Annotated[tuple[MeshDim, ...], DERIVED]


@record(kw_only=True)
class SendHidden(Op):
    op: Literal["pipeline.send"] = "pipeline.send"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = "Sends one micro-batch's hidden states, or their gradients, without waiting."
    touches: ClassVar[Effects] = Effects(reads=(Resource.PIPELINE, Resource.HIDDEN))
    what: Annotated[Literal["activations", "gradients"], DERIVED]
    """Activations go to the stage after, gradients to the stage before."""
    over: Annotated[tuple[MeshDim, ...], DERIVED]
