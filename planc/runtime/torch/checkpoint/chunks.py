"""Read a checkpoint's tensors in one process, whatever mesh saved it."""

from __future__ import annotations

import mmap
from array import array
from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from planc.runtime.checkpoint_format.errors import CorruptCheckpointError, storage_errors
from planc.runtime.checkpoint_format.grid import Box
from planc.runtime.checkpoint_format.hashing import sha256
from planc.runtime.checkpoint_format.manifest import Manifest
from planc.runtime.checkpoint_format.part import chunks_of, header_of, shard_name
from planc.runtime.checkpoint_format.part_files import open_beneath
from planc.runtime.checkpoint_format.shards import element_bytes
from planc.runtime.torch.parallel.blocks import Slices

_MAX_OPEN = 200
"""Files of ranks that are mapped at once: a process may not open many more."""


class _Places:
    """Offsets of each tensor's chunks in a rank's file: a number for each tensor, however many ranks."""

    def __init__(self, manifest: Manifest, *, rank: int, numbers: dict[str, int]) -> None:
        chunks = chunks_of(manifest.contents, rank=rank)
        header = header_of(chunks)
        self._header = (len(header), sha256(header))
        self._begins = array("q", [-1]) * len(numbers)
        # A tensor's chunks follow each other, because their keys begin with its name.
        for chunk in reversed(chunks):
            self._begins[numbers[chunk.tensor]] = len(header) + chunk.begin

    def has_header(self, file: mmap.mmap) -> bool:
        """Whether a rank's file begins as it was saved."""
        length, digest = self._header
        return sha256(file[:length]) == digest

    def begin(self, number: int) -> int:
        return self._begins[number]


class ChunkReader:
    """Reads blocks of tensors from a verified checkpoint's files, which stay mapped."""

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self._directory = directory
        self._manifest = manifest
        self._numbers = {name: number for number, name in enumerate(manifest.tensors)}
        self._places: dict[int, _Places] = {}
        self._files: OrderedDict[int, mmap.mmap] = OrderedDict()
        self._ranks: dict[tuple[int, Box], tuple[int, ...]] = {}

    def read(self, name: str, block: Slices) -> Tensor:
        """A block of a tensor, copied from the chunks that hold parts of it."""
        box = Box(tuple(one.start for one in block), tuple(one.stop - one.start for one in block))
        out = torch.empty(box.sizes, dtype=getattr(torch, self._manifest.tensors[name].dtype))
        self.copy(name, box, out=out)
        return out

    def whole(self, name: str) -> Tensor:
        """All of a tensor."""
        return self.read(name, tuple(slice(0, size) for size in self._manifest.tensors[name].shape))

    def copy(self, name: str, box: Box, *, out: Tensor, taken: Container[tuple[str, Box]] = ()) -> None:
        """Copy a block of a tensor into `out`, without the chunks that are `taken`."""
        num_copied = 0
        for chunk, rank, begin in self._near(name, box):
            if (name, chunk) not in taken:
                self._copy_chunk(name, chunk, rank=rank, begin=begin, box=box, out=out)
            num_copied += prod(last - first for first, last in common(box, chunk))
        assert num_copied == prod(box.sizes), f"the grid of {name} covers it"

    def _copy_chunk(self, name: str, chunk: Box, *, rank: int, begin: int, box: Box, out: Tensor) -> None:
        dtype: torch.dtype = getattr(torch, self._manifest.tensors[name].dtype)
        values = torch.frombuffer(self._file(rank), dtype=dtype, count=prod(chunk.sizes), offset=begin)
        copy_common(values.view(chunk.sizes), chunk, out=out, box=box)

    def _near(self, name: str, box: Box) -> Iterator[tuple[Box, int, int]]:
        """The chunks that hold elements of a box: each with its rank, and where it begins in the file."""
        entry = self._manifest.tensors[name]
        grid = self._manifest.contents.grids[entry.grid]
        if (entry.grid, box) not in self._ranks:
            self._ranks[entry.grid, box] = tuple(sorted(grid.writers_near(box)))
        for rank in self._ranks[entry.grid, box]:
            begin = self._place(rank).begin(self._numbers[name])
            # In the order of their keys, as `chunks_of` sorts them.
            for chunk in sorted(grid.boxes_of(rank), key=lambda one: ",".join(map(str, one.offsets))):
                if is_overlap(box, chunk):
                    yield chunk, rank, begin
                begin += prod(chunk.sizes) * element_bytes(entry.dtype)

    def _place(self, rank: int) -> _Places:
        if rank not in self._places:
            self._places[rank] = _Places(self._manifest, rank=rank, numbers=self._numbers)
        return self._places[rank]

    def _file(self, rank: int) -> mmap.mmap:
        if rank in self._files:
            self._files.move_to_end(rank)
            return self._files[rank]
        if len(self._files) == _MAX_OPEN:
            self._files.popitem(last=False)
        entry, name = self._manifest.parts[rank], shard_name(rank)
        assert entry is not None, "a rank that writes chunks has a part"
        with (
            storage_errors(f"cannot read {self._directory / name}"),
            open_beneath(self._directory, name=name) as stream,
        ):
            # Writable for torch, and private: nothing is ever written.
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
        if len(mapped) != entry.shard_bytes or not self._place(rank).has_header(mapped):
            raise CorruptCheckpointError(
                f"{self._directory / name} has changed since it was verified",
                help="make sure that nothing else writes to checkpoints",
            )
        self._files[rank] = mapped
        return mapped


def common(one: Box, other: Box) -> list[tuple[int, int]]:
    """The elements that both boxes hold, along each dim: the first, and the one after the last."""
    return [
        (max(start, place), min(start + size, place + length))
        for start, size, place, length in zip(*one, *other, strict=True)
    ]


def is_overlap(one: Box, other: Box) -> bool:
    return all(first < last for first, last in common(one, other))


def copy_common(values: Tensor, chunk: Box, *, out: Tensor, box: Box) -> None:
    """Copy the elements of a chunk that are in a box, which is `out`."""
    ranges = common(box, chunk)
    out[_within(ranges, box.offsets)].copy_(values[_within(ranges, chunk.offsets)])


def _within(ranges: Iterable[tuple[int, int]], offsets: Iterable[int]) -> Slices:
    return tuple(
        slice(first - offset, last - offset) for (first, last), offset in zip(ranges, offsets, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Distance:
    """The distance between two checkpoints' values of a tensor: 0 if every bit is equal, even NaN.

    `largest` is the largest absolute difference; infinite if one is NaN or infinite and the other is not.
    """

    name: str
    largest: float


def distances(
    names: Iterable[str], first: tuple[Path, Manifest], second: tuple[Path, Manifest]
) -> Iterator[Distance]:
    """The distance of each tensor, which both hold with one shape; one of each is in memory at a time."""
    readers = [ChunkReader(directory, manifest) for directory, manifest in (first, second)]
    for name in names:
        before, after = (reader.whole(name) for reader in readers)
        yield Distance(name, _largest(before, after))


def is_bitwise_equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one dtype have the same bytes in the same order, NaN included."""
    return torch.equal(_bits(one), _bits(other))


def _largest(before: Tensor, after: Tensor) -> float:
    if is_bitwise_equal(before, after):
        return 0.0
    apart = (before.double() - after.double()).abs().nan_to_num(nan=torch.inf)
    return float(apart.max())


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
