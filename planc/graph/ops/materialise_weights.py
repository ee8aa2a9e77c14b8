"""`weights.materialise`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record


@record(kw_only=True)
class MaterialiseWeights(Op):
    op: Literal["weights.materialise"] = "weights.materialise"
    stage: ClassVar[Stage] = Stage.MATERIALISE
    summary: ClassVar[str] = "Allocates each rank's own shards on its device."

    def effects(self) -> Effects:
        return Effects(reads=(Resource.MODEL,), writes=(Resource.MODEL,))
