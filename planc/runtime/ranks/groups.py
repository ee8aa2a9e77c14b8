"""The groups of ranks that one rank can be in, by the dims that form them."""

from __future__ import annotations

from planc.graph.graph import Graph
from planc.graph.groups import group_name, split_mesh
from planc.vocab import GroupDim, MeshDim


def groups_of(graph: Graph, *, rank: int) -> dict[tuple[int, ...], tuple[GroupDim, ...]]:
    """The dims of more than one rank that form each group that a rank can be in, by its ranks.

    The ends of a pipeline are a group of pp, too.
    """
    sizes = {dim: size for dim, size in split_mesh(graph) if size > 1}
    groups: dict[tuple[int, ...], tuple[GroupDim, ...]] = {(rank,): ()}
    stride = graph.world_size
    ends: tuple[int, ...] = ()
    """The ranks of a pipeline's first and last stage."""
    for dim, size in sizes.items():
        stride //= size
        place = rank // stride % size
        longer = {
            tuple(one + stride * (index - place) for one in ranks for index in range(size)): (*over, dim)
            for ranks, over in groups.items()
        }
        groups |= longer
        if dim is MeshDim.PP:
            ends = (rank - stride * place, rank + stride * (size - 1 - place))
    found = {ranks: group_name(graph, over) for ranks, over in groups.items()}
    return {ends: (MeshDim.PP,), **found} if rank in ends else found
