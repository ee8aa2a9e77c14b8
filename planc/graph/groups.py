"""The groups of ranks that ops communicate in, by the dims that form them."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from planc.graph.graph import Graph
from planc.vocab import ExpertDim, GroupDim


def split_mesh(graph: Graph) -> tuple[tuple[GroupDim, int], ...]:
    """The mesh, outermost dim first, with the factors of experts in the place of their mesh dim."""
    return tuple((part, graph.size(part)) for dim, _ in graph.mesh for part in _parts(graph, dim))


def group_name(graph: Graph, over: Collection[GroupDim]) -> tuple[GroupDim, ...]:
    """The dims of a group of ranks, the same for all that form it: without those of one rank, and as the mesh
    dim if it has all of its ranks."""
    return tuple(_named(graph, over))


def _named(graph: Graph, over: Collection[GroupDim]) -> Iterator[GroupDim]:
    for dim, size in graph.mesh:
        wide = [part for part in _parts(graph, dim) if graph.size(part) > 1]
        own = [part for part in wide if part in over or dim in over]
        if size > 1:
            yield from (dim,) if own == wide else own


def _parts(graph: Graph, dim: GroupDim) -> tuple[GroupDim, ...]:
    is_split = graph.experts is not None and dim in graph.experts.over
    return tuple(ExpertDim) if is_split else (dim,)
