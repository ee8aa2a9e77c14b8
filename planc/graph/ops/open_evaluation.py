"""`data.open_evaluation`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Resource, Stage
from planc.graph.ops.source_op import SourceOp
from planc.record import record


@record(kw_only=True)
class OpenEvaluation(SourceOp):
    op: Literal["data.open_evaluation"] = "data.open_evaluation"
    stage: ClassVar[Stage] = Stage.DATA
    summary: ClassVar[str] = "Reads evaluation data in the same way as training data."
    label: str
    """Its name in the plan."""
    share: str = ""
    """The share of the training documents that it is, as a fraction; empty for a source of its own."""
    sequences: int | None
    """The number of sequences, from the first; None for all."""

    def effects(self) -> Effects:
        return Effects(reads=(Resource.DATA,), writes=(Resource.EVALUATION,))
