"""`export.hf`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.vocab import DType, MeshDim


@record(kw_only=True)
class ExportHf(Op):
    op: Literal["export.hf"] = "export.hf"
    stage: ClassVar[Stage] = Stage.SAVE
    summary: ClassVar[str] = (
        "Gathers the weights, one at a time, into a directory that transformers can load."
    )
    when: Literal["end"]
    dtype: DType
    path: str
    """The model's own directory: its config, tokenizer and generation settings are copied."""
    over: tuple[MeshDim, ...]

    def effects(self) -> Effects:
        return Effects(
            reads=(Resource.MODEL, Resource.WEIGHTS), writes=(Resource.EXPORT,), communicates=self.over
        )
