"""`mesh.init`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.vocab import MeshDim


@record(kw_only=True)
class InitMesh(Op):
    op: Literal["mesh.init"] = "mesh.init"
    stage: ClassVar[Stage] = Stage.MESH
    summary: ClassVar[str] = "Starts the process group and arranges the ranks in a device mesh."
    sizes: tuple[tuple[MeshDim, int], ...]
    """Every mesh dim with its size, outermost first."""
    backend: str
    timeout_seconds: int

    def effects(self) -> Effects:
        return Effects(writes=(Resource.MESH,), communicates=tuple(dim for dim, _ in self.sizes))
