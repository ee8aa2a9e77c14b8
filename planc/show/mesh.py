"""The ranks' places on the mesh."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

from planc.figures.plan import num_ranks
from planc.record import record
from planc.tables import render_table
from planc.vocab import MESH_DIMS, MeshDim

MAX_ROWS = 32
"""The most rows that a reader can use."""
DIM_COLUMNS = ("mesh dim", "size", "stride", "groups", "rank 0 is with")


@record
class MeshRow:
    """Consecutive ranks, first to last, with their first and last coordinate on each mesh dim."""

    first_rank: int
    last_rank: int
    coordinates: tuple[tuple[int, int], ...]


def coordinates(rank: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """A rank's place on each mesh dim, outermost first; the last dim's ranks are neighbors."""
    found = []
    for size in reversed(sizes):
        rank, coordinate = divmod(rank, size)
        found.append(coordinate)
    return tuple(reversed(found))


def stride(mesh_dim: MeshDim, sizes: Sequence[int]) -> int:
    """The distance between neighbors on a mesh dim, in ranks."""
    return prod(sizes[MESH_DIMS.index(mesh_dim) + 1 :])


def mesh_rows(sizes: Sequence[int]) -> tuple[MeshRow, ...]:
    """The whole mesh in at most MAX_ROWS rows if possible: inner dims fold into ranges."""
    num_outer = len(sizes)
    # The outermost dim stays unfolded: a table of one row has no information.
    while prod(sizes[:num_outer]) > MAX_ROWS and prod(sizes[: num_outer - 1]) > 1:
        num_outer -= 1
    inner = sizes[num_outer:]
    rows = []
    for index, outer in enumerate(product(*(range(size) for size in sizes[:num_outer]))):
        first = index * prod(inner)
        ranges = (*((place, place) for place in outer), *((0, size - 1) for size in inner))
        rows.append(MeshRow(first, first + prod(inner) - 1, ranges))
    return tuple(rows)


def mesh_text(sizes: Sequence[int]) -> str:
    """The mesh dims with their strides and first group, then the table from ranks to coordinates."""
    dims = render_table(
        [dim_row(mesh_dim, sizes) for mesh_dim in MESH_DIMS], header=DIM_COLUMNS, right=(1, 2, 3)
    )
    rows = [_text_row(row) for row in mesh_rows(sizes)]
    if len(rows) > MAX_ROWS:
        half = MAX_ROWS // 2
        rows = [*rows[:half], ("...", *("" for _ in sizes)), *rows[-half:]]
    table = render_table(rows, header=("ranks", *MESH_DIMS), right=(1, 2, 3, 4))
    return f"{num_ranks(prod(sizes)).text}, outermost mesh dim first\n\n{dims}\n{table}"


def dim_row(mesh_dim: MeshDim, sizes: Sequence[int]) -> tuple[str, ...]:
    """A mesh dim as DIM_COLUMNS name its cells."""
    size, step = sizes[MESH_DIMS.index(mesh_dim)], stride(mesh_dim, sizes)
    members = [str(index * step) for index in range(size)]
    if len(members) > 8:
        members = [*members[:4], "...", members[-1]]
    together = ", ".join(members[1:]) or "no other"
    return str(mesh_dim), str(size), str(step), str(prod(sizes) // size), together


def _text_row(row: MeshRow) -> tuple[str, ...]:
    return (
        range_text(row.first_rank, row.last_rank),
        *(range_text(first, last) for first, last in row.coordinates),
    )


def range_text(first: int, last: int) -> str:
    """`3`, or `0..7`."""
    return str(first) if first == last else f"{first}..{last}"


def mesh_data(sizes: Sequence[int]) -> dict[str, Any]:
    """World size, and each mesh dim with its size and stride, which determine every coordinate."""
    return {
        "world_size": prod(sizes),
        "mesh_dims": [
            {"name": str(mesh_dim), "size": size, "stride": stride(mesh_dim, sizes)}
            for mesh_dim, size in zip(MESH_DIMS, sizes, strict=True)
        ],
    }
