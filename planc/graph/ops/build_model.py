"""`model.build`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.vocab import DType


@record(kw_only=True)
class BuildModel(Op):
    op: Literal["model.build"] = "model.build"
    stage: ClassVar[Stage] = Stage.BUILD
    summary: ClassVar[str] = "Builds the model on the meta device: modules and shapes, no memory."
    path: str
    """The model folder as the plan names it."""
    config_digest: str
    """SHA-256 of its config.json."""
    architecture: str
    dtype: DType
    zeroed: tuple[str, ...]
    """Fields of config.json that are taken as 0: by them training would draw random numbers."""

    def effects(self) -> Effects:
        return Effects(reads=(Resource.MESH,), writes=(Resource.MODEL,))
