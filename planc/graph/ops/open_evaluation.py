"""`data.open_evaluation`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.data_sources import SourceName
from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record


@record(kw_only=True)
class OpenEvaluation(Op):
    op: Literal["data.open_evaluation"] = "data.open_evaluation"
    stage: ClassVar[Stage] = Stage.DATA
    summary: ClassVar[str] = "Reads evaluation data in the same way as training data."
    label: str
    """Its name in the plan."""
    source: SourceName
    patterns: tuple[str, ...]
    field: str
    train_on: str = ""
    revision: str = ""
    split: str = ""
    subset: str | None = None
    sequences: int | None
    """The number of sequences, from the first; None for all."""

    def effects(self) -> Effects:
        return Effects(reads=(Resource.DATA,), writes=(Resource.EVALUATION,))
