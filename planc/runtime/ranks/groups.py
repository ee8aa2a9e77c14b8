"""The groups of ranks that one rank can be in, by the dims that form them."""

from __future__ import annotations

from collections.abc import Collection

from planc.graph.graph import Graph
from planc.graph.groups import axes, group_name
from planc.vocab import GroupDim, MeshDim


def groups_of(graph: Graph, *, rank: int) -> dict[tuple[int, ...], tuple[GroupDim, ...]]:
    """The dims of more than one rank that form each group that a rank can be in, by its ranks.

    The ends of a pipeline are a group of pp, too.
    """
    groups: dict[tuple[int, ...], tuple[GroupDim, ...]] = {(rank,): ()}
    ends: tuple[int, ...] = ()
    """The ranks of a pipeline's first and last stage."""
    for axis in (axis for axis in axes(graph) if axis.size > 1):
        place = rank // axis.stride % axis.size
        along = [axis.stride * (index - place) for index in range(axis.size)]
        groups |= {
            tuple(sorted(other + step for other in ranks for step in along)): (*over, axis.dim)
            for ranks, over in groups.items()
            if not _overlaps(graph, axis.dim, over)
        }
        if axis.dim is MeshDim.PP:
            ends = (rank + along[0], rank + along[-1])
    found = {ranks: group_name(graph, over) for ranks, over in groups.items()}
    return {ends: (MeshDim.PP,), **found} if rank in ends else found


def _overlaps(graph: Graph, dim: GroupDim, over: Collection[GroupDim]) -> bool:
    """Whether a dim is a factor of mesh dims that are there."""
    return dim not in graph.mesh_dims(dim) and not set(over).isdisjoint(graph.mesh_dims(dim))
