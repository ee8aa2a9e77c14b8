"""Read a checkpoint's tensors in one process, whatever mesh saved it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from planc.runtime.checkpoint_format.manifest import Chunk, Manifest, TensorEntry
from planc.runtime.torch.parallel.blocks import Slices


class ChunkReader:
    """Reads blocks of tensors from a checkpoint's files, which stay open. SafetensorError for damage."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[str, Any] = {}

    def read(self, entry: TensorEntry, block: Slices) -> Tensor:
        """A block of a tensor, copied from the chunks that hold parts of it."""
        if not block:
            [chunk] = entry.chunks
            scalar: Tensor = self._file(chunk).get_tensor(chunk.key)
            return scalar
        out = torch.empty([one.stop - one.start for one in block], dtype=getattr(torch, entry.dtype))
        for chunk in entry.chunks:
            places = list(zip(block, chunk.offsets, chunk.sizes, strict=True))
            common = [(max(one.start, offset), min(one.stop, offset + size)) for one, offset, size in places]
            if any(start >= stop for start, stop in common):
                continue
            held = tuple(
                slice(start - offset, stop - offset)
                for (start, stop), offset in zip(common, chunk.offsets, strict=True)
            )
            wanted = tuple(
                slice(start - one.start, stop - one.start)
                for (start, stop), one in zip(common, block, strict=True)
            )
            out[wanted] = self._file(chunk).get_slice(chunk.key)[held]
        return out

    def _file(self, chunk: Chunk) -> Any:
        if chunk.file not in self._files:
            self._files[chunk.file] = safe_open(self._directory / chunk.file, framework="pt")
        return self._files[chunk.file]


@dataclass(frozen=True, slots=True)
class Distance:
    """How far two checkpoints' values of a tensor differ: 0 if every bit is equal, even NaN.

    `largest` is the largest absolute difference; infinite if one is NaN or infinite and the other is not.
    """

    name: str
    largest: float


def distances(
    names: Iterable[str], first: tuple[Path, Manifest], second: tuple[Path, Manifest]
) -> Iterator[Distance]:
    """The distance of each tensor, which both hold with one shape; one of each is in memory at a time."""
    readers = [(ChunkReader(directory), manifest) for directory, manifest in (first, second)]
    for name in names:
        before, after = (whole(reader, manifest.tensors[name]) for reader, manifest in readers)
        yield Distance(name, _largest(before, after))


def whole(reader: ChunkReader, entry: TensorEntry) -> Tensor:
    """All of a tensor."""
    return reader.read(entry, tuple(slice(0, size) for size in entry.shape))


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
