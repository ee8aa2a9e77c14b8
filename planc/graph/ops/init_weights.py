"""`weights.init`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record


@record(kw_only=True)
class InitWeights(Op):
    op: Literal["weights.init"] = "weights.init"
    stage: ClassVar[Stage] = Stage.LOAD
    summary: ClassVar[str] = (
        "Draws the initial weights that a rank holds, by their places: bitwise equal on every mesh."
    )
    seed: int

    def effects(self) -> Effects:
        return Effects(reads=(Resource.MODEL,), writes=(Resource.WEIGHTS,))
