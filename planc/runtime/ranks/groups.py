"""The groups of ranks that one rank can be in, by the mesh dims that form them."""

from __future__ import annotations

from planc.graph.graph import Graph
from planc.vocab import MeshDim


def groups_of(graph: Graph, *, rank: int) -> dict[tuple[int, ...], tuple[MeshDim, ...]]:
    """The mesh dims of more than one rank that form each group that a rank can be in, by its ranks."""
    sizes = {mesh_dim: size for mesh_dim, size in graph.mesh if size > 1}
    groups: dict[tuple[int, ...], tuple[MeshDim, ...]] = {(rank,): ()}
    stride = graph.world_size
    for mesh_dim, size in sizes.items():
        stride //= size
        place = rank // stride % size
        longer = {
            tuple(one + stride * (index - place) for one in ranks for index in range(size)): (*over, mesh_dim)
            for ranks, over in groups.items()
        }
        groups |= longer
    return groups
