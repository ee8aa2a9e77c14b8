"""The ranks of a world to rehearse: one of every class that can differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planc.graph.graph import Graph
from planc.vocab import MeshDim


def rehearsed_ranks(graph: Graph, divided: Mapping[MeshDim, tuple[int, ...]]) -> tuple[int, ...]:
    """Ranks in ascending order, rank 0 and the last among them.

    `divided` are the lengths that are chunked over each mesh dim. If all of them divide evenly, ranks
    along the dim hold blocks of equal shape; what else may differ, the chunks of a sequence, differs most
    between the first and the last rank. If one does not, the ranks where chunks become smaller differ too.
    Every rank of a pipeline has layers of its own.
    """
    sizes = dict(graph.mesh)
    first = dict.fromkeys(sizes, 0)
    places = [first, {mesh_dim: size - 1 for mesh_dim, size in sizes.items()}]
    places.extend({**first, MeshDim.PP: stage} for stage in range(sizes[MeshDim.PP]))
    for mesh_dim, lengths in divided.items():
        uneven = (place for length in lengths for place in _uneven_places(length, size=sizes[mesh_dim]))
        places.extend({**first, mesh_dim: place} for place in uneven)
    return tuple(sorted({_rank(sizes, place) for place in places}))


def _uneven_places(length: int, *, size: int) -> Iterator[int]:
    """The first place with the short chunk, the one after it, which may be empty, and the last."""
    if length % size:
        num_full = length // -(-length // size)
        yield from (place for place in (num_full, num_full + 1, size - 1) if place < size)


def _rank(sizes: dict[MeshDim, int], place: dict[MeshDim, int]) -> int:
    """Meshes are laid out with the last dim fastest."""
    rank = 0
    for mesh_dim, size in sizes.items():
        rank = rank * size + place[mesh_dim]
    return rank
