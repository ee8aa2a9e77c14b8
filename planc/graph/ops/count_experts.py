"""`experts.count`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record


@record(kw_only=True)
class CountExperts(Op):
    op: Literal["experts.count"] = "experts.count"
    stage: ClassVar[Stage] = Stage.DATA
    summary: ClassVar[str] = "Counts the tokens that each expert gets in a logged step."
    layers: tuple[tuple[str, int], ...]
    """The modules of stacked experts with their numbers of experts, in the model's order."""

    def effects(self) -> Effects:
        # `log` sums the counts over all ranks.
        return Effects(reads=(Resource.MODEL,), writes=(Resource.MODEL,))
