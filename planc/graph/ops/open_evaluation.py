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
    summary: ClassVar[str] = "Reads text that is not trained on, as the training text is read."
    label: str
    """What the plan calls it."""
    source: SourceName
    patterns: tuple[str, ...]
    field: str
    train_on: str = ""
    revision: str = ""
    split: str = ""
    subset: str | None = None
    sequences: int | None
    """From the first on; None for all."""

    def effects(self) -> Effects:
        return Effects(reads=(Resource.DATA,), writes=(Resource.EVALUATION,))
