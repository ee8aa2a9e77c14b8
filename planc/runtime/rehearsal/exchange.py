"""A change from one sharded tensor dimension to another, as on the device of the run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from planc.graph.graph import Graph
from planc.graph.ops import InitMesh
from planc.runtime.rehearsal.private import dtensor_placements


@contextlib.contextmanager
def exchanging(graph: Graph) -> Iterator[None]:
    """Inside, DTensor calls an all-to-all unless the plan runs on gloo.

    A rehearsal runs on a CPU, for which DTensor gathers everything and keeps its part.
    """
    (mesh,) = (op for op in graph.setup if isinstance(op, InitMesh))
    if mesh.backend == "gloo":
        yield
        return
    gathered = dtensor_placements.shard_dim_alltoall
    dtensor_placements.shard_dim_alltoall = _all_to_all
    try:
        yield
    finally:
        dtensor_placements.shard_dim_alltoall = gathered


def _all_to_all(tensor: Tensor, gather_dim: int, shard_dim: int, mesh: DeviceMesh, mesh_dim: int) -> Any:
    group = mesh.get_group(mesh_dim).group_name
    return torch.ops._dtensor.shard_dim_alltoall(tensor, gather_dim, shard_dim, group)
