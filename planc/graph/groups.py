"""The groups of ranks that ops communicate in, by the dims that form them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from planc.graph.graph import Graph
from planc.record import record
from planc.vocab import ExpertDim, GroupDim, MeshDim


@record
class Axis:
    """A dim, its number of ranks, and the difference in rank of neighbors along it."""

    dim: GroupDim
    size: int
    stride: int


def axes(graph: Graph) -> tuple[Axis, ...]:
    """The mesh, outermost dim first, then the factors of mesh dims that experts are on."""
    dims: tuple[GroupDim, ...] = tuple(dim for dim, _ in graph.mesh)
    factors = tuple(ExpertDim) if graph.experts is not None else ()
    return tuple(Axis(dim, graph.size(dim), graph.stride(dim)) for dim in (*dims, *factors))


def group_name(graph: Graph, over: Collection[GroupDim]) -> tuple[GroupDim, ...]:
    """The dims of a group of ranks, the same for all that form it: without those of one rank, and as mesh
    dims if they form it."""
    wide = [axis for axis in axes(graph) if axis.size > 1]
    given = [axis for axis in wide if axis.dim in over]
    spans = _spans(given)
    inside = [axis for axis in wide if isinstance(axis.dim, MeshDim) and _is_inside(axis, spans)]
    named = inside if _spans(inside) == spans else given
    return tuple(axis.dim for axis in sorted(named, key=lambda axis: -axis.stride))


def _spans(some: Iterable[Axis]) -> list[tuple[int, int]]:
    """(stride, stride of the next dim) of dims, those of neighbors as one."""
    spans: list[tuple[int, int]] = []
    for axis in sorted(some, key=lambda axis: axis.stride):
        start = spans.pop()[0] if spans and spans[-1][1] == axis.stride else axis.stride
        spans.append((start, axis.stride * axis.size))
    return spans


def _is_inside(axis: Axis, spans: Iterable[tuple[int, int]]) -> bool:
    return any(start <= axis.stride and axis.stride * axis.size <= end for start, end in spans)
