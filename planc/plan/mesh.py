"""The `mesh` block: the sizes of the mesh dims, and how their ranks communicate."""

from __future__ import annotations

from enum import StrEnum

from planc.plan.keys import key, keyed
from planc.plan.quantities import SECONDS
from planc.plan.scalars import Choice, Int, Quantity
from planc.plan.types import Optional
from planc.vocab import MeshDim


class Backend(StrEnum):
    AUTO = "auto"
    GLOO = "gloo"
    NCCL = "nccl"


_SIZE = Int(1, instead="write every mesh dim as a number: the world size is their product")


@keyed
class MeshSpec:
    """The device mesh, outermost dim first: pp, dp_replicate, dp_shard, cp, tp."""

    pp: int = key(_SIZE, unsaid=1, doc="ranks that each run a part of the layers, by `pipeline`")
    dp_replicate: int = key(
        _SIZE, unsaid=1, doc="replicas of the shards with `fsdp`, otherwise of the whole model"
    )
    dp_shard: int = key(_SIZE, unsaid=1, doc="ranks that shard parameters, gradients and optimizer state")
    cp: int = key(_SIZE, unsaid=1, doc="ranks that shard each sequence")
    tp: int = key(_SIZE, unsaid=1, doc="ranks that shard each layer")
    devices_per_node: int | None = key(
        Optional(Int(1)), unsaid=None, doc="shows the checks which dims cross nodes", example="8"
    )
    backend: Backend = key(
        Choice(Backend), unsaid=Backend.AUTO, doc="auto is nccl if CUDA is available, otherwise gloo"
    )
    timeout: int = key(Quantity(SECONDS, low=1), unsaid=600, doc="longest time for one collective")

    def size(self, mesh_dim: MeshDim) -> int:
        found: int = getattr(self, mesh_dim.value)
        return found

    @property
    def sizes(self) -> dict[MeshDim, int]:
        return {mesh_dim: self.size(mesh_dim) for mesh_dim in MeshDim}

    @property
    def world_size(self) -> int:
        return self.pp * self.dp_replicate * self.dp_shard * self.cp * self.tp

    @property
    def dp_size(self) -> int:
        """The number of ranks that get different samples."""
        return self.dp_replicate * self.dp_shard
