"""`dropout.attach`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.vocab import DropoutDim, MeshDim, Placement


@record
class Draw:
    """One dropout of a module, and how ranks of tensor parallelism hold its tensor.

    `dims` are the dimensions of one device's tensor: an integer is a length that no batch changes.
    """

    probability: float
    dims: tuple[DropoutDim | int, ...]
    layout: Placement

    def __str__(self) -> str:
        return f"{self.probability} of [{', '.join(map(str, self.dims))}] {self.layout}"


@record(kw_only=True)
class AttachDropout(Op):
    op: Literal["dropout.attach"] = "dropout.attach"
    stage: ClassVar[Stage] = Stage.BUILD
    summary: ClassVar[str] = (
        "Gives modules dropout whose masks depend on the seed, the step and each element's global position."
    )
    modules: tuple[str, ...]
    draws: tuple[Draw, ...]
    """What each of the modules drops in one forward of the model, in order."""
    seed: int
    over: tuple[MeshDim, ...]
    """The mesh dim that the layouts are over."""

    def effects(self) -> Effects:
        # It sends nothing: every rank computes its part of the mask.
        return Effects(reads=(Resource.MODEL,), writes=(Resource.MODEL,))
