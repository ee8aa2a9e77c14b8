"""The groups of ranks that one rank can be in, by the mesh dims that form them."""

from __future__ import annotations

from planc.graph.graph import Graph
from planc.vocab import MeshDim


def groups_of(graph: Graph, *, rank: int) -> dict[tuple[int, ...], tuple[MeshDim, ...]]:
    """The mesh dims of more than one rank that form each group that a rank can be in, by its ranks.

    The ends of a pipeline are a group of pp, too.
    """
    sizes = {mesh_dim: size for mesh_dim, size in graph.mesh if size > 1}
    groups: dict[tuple[int, ...], tuple[MeshDim, ...]] = {(rank,): ()}
    stride = graph.world_size
    ends: tuple[int, ...] = ()
    """The ranks of a pipeline's first and last stage."""
    for mesh_dim, size in sizes.items():
        stride //= size
        place = rank // stride % size
        longer = {
            tuple(one + stride * (index - place) for one in ranks for index in range(size)): (*over, mesh_dim)
            for ranks, over in groups.items()
        }
        groups |= longer
        if mesh_dim is MeshDim.PP:
            ends = (rank - stride * place, rank + stride * (size - 1 - place))
    return {ends: (MeshDim.PP,), **groups} if rank in ends else groups
