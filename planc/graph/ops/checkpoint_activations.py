"""`activation_checkpoint.wrap`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record


@record(kw_only=True)
class CheckpointActivations(Op):
    op: Literal["activation_checkpoint.wrap"] = "activation_checkpoint.wrap"
    stage: ClassVar[Stage] = Stage.ACTIVATION_CHECKPOINT
    summary: ClassVar[str] = "Makes modules recompute all or most of their activations in backward."
    mode: Literal["full", "selective"]
    modules: tuple[str, ...]

    def effects(self) -> Effects:
        return Effects(reads=(Resource.MODEL,), writes=(Resource.MODEL,))
