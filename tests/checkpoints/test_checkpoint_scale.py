"""A checkpoint's manifest stays small on many ranks, and states exactly what each of them holds."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise, product
from math import prod

import pytest

from planc.runtime.checkpoint_format.grid import Box, Grid, GridError, grid_of
from planc.runtime.torch.checkpoint.planning import contents_of, holdings_of, outline_of
from tests.bench.manifest import Mesh, reports, state

SEED = 20261123


def random_grid(chosen: random.Random) -> tuple[tuple[int, ...], dict[Box, int]]:
    """A shape cut at random along each dim, and a writer for each cell."""
    shape = tuple(chosen.randint(1, 12) for _ in range(chosen.randint(0, 3)))
    cuts = []
    for length in shape:
        inner = sorted(chosen.sample(range(1, length), chosen.randint(0, min(3, length - 1))))
        ends = [0, *inner, length]
        cuts.append(list(pairwise(ends)))
    cells = [
        Box(tuple(begin for begin, _ in cell), tuple(end - begin for begin, end in cell))
        for cell in product(*cuts)
    ]
    num_ranks = chosen.randint(1, 6)
    kinds = (
        lambda index: index,
        lambda index: len(cells) - 1 - index,
        lambda _: chosen.randrange(num_ranks),
        lambda index: index % num_ranks * 7 + index // num_ranks,
    )
    writer = chosen.choice(kinds)
    return shape, {cell: writer(index) for index, cell in enumerate(cells)}


def is_near(one: Box, other: Box) -> bool:
    return all(
        start < place + length and place < start + size
        for start, size, place, length in zip(*one, *other, strict=True)
    )


def test_a_grid_states_every_chunk_and_its_writer() -> None:
    chosen = random.Random(SEED)
    for _ in range(300):
        shape, writers = random_grid(chosen)
        grid = grid_of(shape, writers)
        assert (grid.shape, grid.num_cells, grid.ranks()) == (shape, len(writers), set(writers.values()))
        for rank in range(max(writers.values()) + 2):
            assert set(grid.boxes_of(rank)) == {box for box, writer in writers.items() if writer == rank}
        starts = tuple(chosen.randrange(length) for length in shape)
        sizes = tuple(chosen.randint(1, length - start) for start, length in zip(starts, shape, strict=True))
        wanted = Box(starts, sizes)
        near = {writer for box, writer in writers.items() if is_near(box, wanted)}
        assert grid.writers_near(wanted) == near
        assert Grid.model_validate_json(grid.model_dump_json()) == grid


@pytest.mark.parametrize(
    ("boxes", "said"),
    [
        ([((0, 0), (2, 3))], "3 of 9 elements are in no chunk"),
        ([((0, 0), (3, 3)), ((1, 0), (1, 3))], "overlap"),
        ([((0, 0), (2, 3)), ((2, 0), (2, 3))], "is not a box within"),
        ([((0, 0), (3, 1)), ((0, 1), (2, 2)), ((2, 1), (1, 2))], "not the cells of a grid"),
        ([], "9 of 9 elements are in no chunk"),
    ],
)
def test_chunks_that_are_no_grid_are_refused(
    boxes: list[tuple[tuple[int, ...], tuple[int, ...]]], said: str
) -> None:
    writers = {Box(offsets, sizes): rank for rank, (offsets, sizes) in enumerate(boxes)}
    with pytest.raises(GridError, match=said):
        grid_of((3, 3), writers)


def test_an_empty_tensor_has_no_chunk() -> None:
    grid = grid_of((0, 3), {})
    assert (grid.shape, grid.num_cells, grid.ranks(), list(grid.boxes_of(0))) == ((0, 3), 0, set(), [])


def planned(mesh: Mesh) -> tuple[int, Mapping[int, int]]:
    """The length of the plan that rank 0 sends, and the number of elements that each rank writes."""
    tensors = state(mesh)
    holdings = reports(holdings_of(tensors, {}), mesh, tensors)
    contents = contents_of([outline_of(tensors, {})], holdings=holdings)
    used = Counter(tensor.grid for tensor in contents.tensors.values())
    written = {
        rank: sum(
            used[index] * prod(box.sizes)
            for index, grid in enumerate(contents.grids)
            for box in grid.boxes_of(rank)
        )
        for rank in contents.ranks()
    }
    assert sum(written.values()) == sum(prod(tensor.shape) for tensor in tensors.values())
    return len(contents.model_dump_json()), written


def test_the_plan_of_a_save_does_not_grow_with_the_ranks() -> None:
    few, _ = planned(Mesh(1, 2, 2))
    many, written = planned(Mesh(2, 16, 2))
    assert many < 1.1 * few
    assert sorted(written) == list(range(64)), "every replica writes too"
    assert max(written.values()) < 1.1 * sum(written.values()) / len(written)
