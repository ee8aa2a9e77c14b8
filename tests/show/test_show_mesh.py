"""Ranks on the mesh."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest

from planc.show.mesh import MAX_ROWS, coordinates, mesh_rows, mesh_text, stride
from planc.vocab import MESH_DIMS


def test_tp_ranks_are_neighbours() -> None:
    places = [coordinates(rank, (1, 2, 2, 1, 2)) for rank in range(8)]
    assert places == list(product(range(1), range(2), range(2), range(1), range(2)))


@pytest.mark.parametrize(
    "sizes", [(1, 1, 1, 1, 1), (1, 1, 2, 1, 2), (2, 4, 8, 4, 8), (1, 8, 256, 1, 8), (16, 1, 128, 1, 8)]
)
def test_rows_cover_every_rank_once(sizes: tuple[int, ...]) -> None:
    rows = mesh_rows(sizes)
    ranks = [rank for row in rows for rank in range(row.first_rank, row.last_rank + 1)]
    assert ranks == list(range(prod(sizes)))
    for row in rows:
        assert coordinates(row.first_rank, sizes) == tuple(first for first, _ in row.coordinates)
        assert coordinates(row.last_rank, sizes) == tuple(last for _, last in row.coordinates)


@pytest.mark.parametrize(
    "sizes", [(1, 8, 256, 1, 8), (16, 1, 128, 1, 8), (1, 2048, 1, 1, 8), (2048, 1, 1, 1, 8)]
)
def test_sixteen_thousand_ranks_fit_a_screen(sizes: tuple[int, ...]) -> None:
    assert len(mesh_text(sizes).splitlines()) < MAX_ROWS + 12


MESHES = [sizes for sizes in product((1, 2, 4, 8), repeat=5) if prod(sizes) <= 8]


@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_every_group_is_made_of_ranks_a_stride_apart(sizes: tuple[int, ...]) -> None:
    """`places` is how PyTorch lays ranks out as a device mesh."""
    places = np.arange(prod(sizes)).reshape(sizes)
    assert [int(places[coordinates(rank, sizes)]) for rank in range(prod(sizes))] == list(range(prod(sizes)))
    for axis, mesh_dim in enumerate(MESH_DIMS):
        groups = np.moveaxis(places, axis, -1).reshape(-1, sizes[axis])
        first = np.arange(sizes[axis]) * stride(mesh_dim, sizes)
        assert (groups - groups[:, :1] == first).all()
