"""Grids: the chunks of tensors and the rank that writes each, in a few numbers for any number of ranks.

Sharding cuts a tensor along its dims, each independently, so the chunks of all ranks are the cells of a grid.
A grid states the cuts of each dim, and the cells' ranks in the grid's order, both as runs of numbers that
repeat. That the cells hold every element exactly once follows from the sums of the cuts, without any list of
chunks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby, product
from math import prod
from typing import Annotated, NamedTuple, Self

from pydantic import Field, model_validator

from planc.runtime.checkpoint_format.coverage import coverage_problem
from planc.runtime.checkpoint_format.records import Count, PositiveCount, Rank, Record

MAX_CELLS = 2**24
"""A thousand times the chunks that the largest cluster cuts a tensor into."""

Cut = tuple[PositiveCount, Annotated[int, Field(ge=1, le=MAX_CELLS)]]
"""A length, and how many pieces of this length follow each other."""
Writers = tuple[Rank, Count, Annotated[int, Field(ge=1, le=MAX_CELLS)]]
"""The rank of the first of some cells, by how much it grows from cell to cell, and their number."""


class Box(NamedTuple):
    """A chunk's place in its tensor, in elements."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


class GridError(ValueError):
    """Chunks that hold an element twice, or not at all, or are not a grid."""


class Grid(Record):
    """The chunks of every tensor with this shape and these writers. Cells are in C order."""

    cuts: tuple[tuple[Cut, ...], ...]
    writers: tuple[Writers, ...]

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        num_writers = sum(count for _, _, count in self.writers)
        if self.num_cells > MAX_CELLS or num_writers != self.num_cells:
            raise ValueError(f"a grid of {self.num_cells} chunks has {num_writers} writers")
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(sum(length * count for length, count in cuts) for cuts in self.cuts)

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of pieces along each dim."""
        return tuple(sum(count for _, count in cuts) for cuts in self.cuts)

    @property
    def num_cells(self) -> int:
        return prod(self.counts)

    def ranks(self) -> set[int]:
        """Every rank that writes a chunk."""
        found: set[int] = set()
        for first, stride, count in self.writers:
            found.update(range(first, first + stride * count, stride) if stride else (first,))
        return found

    def boxes_of(self, rank: int) -> Iterator[Box]:
        """The chunks that a rank writes, in the grid's order."""
        begin = 0
        for first, stride, count in self.writers:
            if stride == 0:
                mine = range(count) if rank == first else range(0)
            else:
                index, rest = divmod(rank - first, stride)
                mine = range(index, index + 1) if rest == 0 and 0 <= index < count else range(0)
            yield from (self.box(begin + index) for index in mine)
            begin += count

    def box(self, cell: int) -> Box:
        """The chunk of a cell."""
        indices = []
        for count in reversed(self.counts):
            cell, index = divmod(cell, count)
            indices.append(index)
        pieces = [_piece(cuts, index) for cuts, index in zip(self.cuts, reversed(indices), strict=True)]
        return Box(tuple(start for start, _ in pieces), tuple(length for _, length in pieces))

    def writers_near(self, box: Box) -> set[int]:
        """The ranks whose chunks hold elements of a box."""
        if prod(box.sizes) == 0:
            return set()
        places = [
            _places(cuts, start, start + size)
            for cuts, start, size in zip(self.cuts, box.offsets, box.sizes, strict=True)
        ]
        counts = self.counts
        if [len(place) for place in places] == list(counts):
            return self.ranks()
        ends = list(accumulate(count for _, _, count in self.writers))
        writers: set[int] = set()
        for indices in product(*places):
            cell = 0
            for index, count in zip(indices, counts, strict=True):
                cell = cell * count + index
            run = bisect_right(ends, cell)
            first, stride, count = self.writers[run]
            writers.add(first + stride * (cell - ends[run] + count))
        return writers


def grid_of(shape: tuple[int, ...], writers: Mapping[Box, int]) -> Grid:
    """The grid of a tensor's chunks and their writers; GridError if they do not hold each element once."""
    cuts = [sorted({(box.offsets[dim], box.sizes[dim]) for box in writers}) for dim in range(len(shape))]
    if prod(shape) == 0:
        cuts = [[(0, length)] if length else [] for length in shape]
    num_cells = prod(len(pieces) for pieces in cuts)
    if num_cells != len(writers) or not all(map(_is_tiled, cuts, shape)):
        problem = coverage_problem(_Whole(shape, tuple(writers)))
        raise GridError(problem or "its chunks are not the cells of a grid")
    cells = [Box(*zip(*cell, strict=True)) if cell else Box((), ()) for cell in product(*cuts)]
    return Grid(
        cuts=tuple(_runs(length for _, length in pieces) for pieces in cuts),
        writers=_progressions([writers[cell] for cell in cells]),
    )


class _Whole(NamedTuple):
    shape: tuple[int, ...]
    chunks: tuple[Box, ...]


def _is_tiled(pieces: Sequence[tuple[int, int]], length: int) -> bool:
    """Whether pieces, each a start and a length, follow each other from 0 to `length`."""
    ends = [0, *(start + size for start, size in pieces)]
    return ends[-1] == length and all(
        start == end and size > 0 for (start, size), end in zip(pieces, ends, strict=False)
    )


def _runs(lengths: Iterable[int]) -> tuple[tuple[int, int], ...]:
    return tuple((length, sum(1 for _ in same)) for length, same in groupby(lengths))


def _progressions(ranks: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
    progressions: list[tuple[int, int, int]] = []
    for rank in ranks:
        if progressions:
            first, stride, count = progressions[-1]
            step = rank - first if count == 1 else stride
            if step >= 0 and rank == first + step * count:
                progressions[-1] = (first, step, count + 1)
                continue
        progressions.append((rank, 0, 1))
    return tuple(progressions)


def _piece(cuts: Iterable[tuple[int, int]], index: int) -> tuple[int, int]:
    """The start and the length of a piece."""
    start = 0
    for length, count in cuts:
        if index < count:
            return start + index * length, length
        start, index = start + length * count, index - count
    raise IndexError(index)


def _places(cuts: Iterable[tuple[int, int]], begin: int, end: int) -> range:
    """The pieces that hold elements from `begin` to before `end`, which is after it."""
    start = index = 0
    first = last = None
    for length, count in cuts:
        stop = start + length * count
        if first is None and begin < stop:
            first = index + (begin - start) // length
        if last is None and end <= stop:
            last = index + (end - 1 - start) // length
        start, index = stop, index + count
    assert first is not None and last is not None, "the box is within the tensor"
    return range(first, last + 1)
