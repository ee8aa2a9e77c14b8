"""`weights.materialise`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterialiseWeights(Op):
    op: Literal["weights.materialise"] = "weights.materialise"
    stage: ClassVar[Stage] = Stage.MATERIALISE
    summary: ClassVar[str] = "Allocates each rank's own shards on its device."

    def effects(self) -> Effects:
        return Effects(reads=(Resource.MODEL,), writes=(Resource.MODEL,))
