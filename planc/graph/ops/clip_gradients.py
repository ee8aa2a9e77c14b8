"""`grads.clip`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.vocab import MeshDim


@record(kw_only=True)
class ClipGradients(Op):
    op: Literal["grads.clip"] = "grads.clip"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = (
        "Computes the global gradient norm, each distinct element once, and clips it to `max_norm`."
    )
    max_norm: float | None
    """None to compute the norm without clipping."""
    over: tuple[MeshDim, ...]

    def effects(self) -> Effects:
        return Effects(
            reads=(Resource.SYNCED_GRADIENTS,), writes=(Resource.CLIPPED_GRADIENTS,), communicates=self.over
        )
