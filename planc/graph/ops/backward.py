"""`backward`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.vocab import MeshDim


@dataclass(frozen=True, slots=True, kw_only=True)
class Backward(Op):
    op: Literal["backward"] = "backward"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = (
        "Runs the backward pass; sharded units reduce their gradients on the last micro step."
    )
    over: tuple[MeshDim, ...]

    def effects(self) -> Effects:
        return Effects(reads=(Resource.LOSS,), writes=(Resource.GRADIENTS,), communicates=self.over)
