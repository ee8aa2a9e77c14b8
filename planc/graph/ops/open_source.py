"""`data.open_source`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Resource, Stage
from planc.graph.ops.source_op import SourceOp
from planc.record import record


@record(kw_only=True)
class OpenSource(SourceOp):
    op: Literal["data.open_source"] = "data.open_source"
    stage: ClassVar[Stage] = Stage.DATA
    summary: ClassVar[str] = "Reads, tokenizes and packs one source of a mixture."
    label: str
    """Its name in the plan."""
    weight: str
    """As a fraction, such as 7/10; empty for as many sequences as it has."""

    def effects(self) -> Effects:
        return Effects(reads=(Resource.MESH,), writes=(Resource.SOURCE,))
