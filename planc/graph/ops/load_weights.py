"""`weights.load`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record


@record(kw_only=True)
class LoadWeights(Op):
    op: Literal["weights.load"] = "weights.load"
    stage: ClassVar[Stage] = Stage.LOAD
    summary: ClassVar[str] = "Reads each rank's slices of the model's safetensors files."
    path: str
    seed: int
    """Seeds the buffers that no file holds."""
    strip: str | None = None
    """The part of the tensors' names in the files that the model's names lack."""

    def effects(self) -> Effects:
        return Effects(reads=(Resource.MODEL,), writes=(Resource.WEIGHTS,))
