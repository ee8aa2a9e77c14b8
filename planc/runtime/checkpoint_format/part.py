"""A rank's part of a checkpoint: its chunks in one safetensors file, and their hashes in a file next to it.

What the chunks are, and where each begins, follows from the manifest. The part adds what only its writer
knows: the SHA-256 of each chunk's bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planc.runtime.checkpoint_format.grid import Box
from planc.runtime.checkpoint_format.manifest import Contents
from planc.runtime.checkpoint_format.records import Rank, Record, Sha256, Step
from planc.runtime.checkpoint_format.shards import Entry, encode_header


class Part(Record):
    """The hashes of a rank's chunks by their keys, in the order of the file."""

    step: Step
    rank: Rank
    chunks: dict[str, Sha256]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A box of a tensor in a rank's file, and its first byte after the file's header."""

    tensor: str
    box: Box
    entry: Entry
    begin: int

    @property
    def end(self) -> int:
        return self.begin + self.entry.size_bytes


def part_name(rank: int) -> str:
    return f"rank-{rank:05}.json"


def shard_name(rank: int) -> str:
    return f"rank-{rank:05}.safetensors"


def chunks_of(contents: Contents, *, rank: int) -> tuple[Chunk, ...]:
    """The chunks that a rank writes, in the order of its file."""
    unplaced = []
    boxes: dict[int, tuple[Box, ...]] = {}
    for name, tensor in contents.tensors.items():
        if tensor.grid not in boxes:
            boxes[tensor.grid] = tuple(contents.grids[tensor.grid].boxes_of(rank))
        for box in boxes[tensor.grid]:
            key = f"{name}@{','.join(map(str, box.offsets))}"
            unplaced.append((name, box, Entry(key, tensor.dtype, box.sizes)))
    # Wider elements first, as `encode_header` needs.
    unplaced.sort(key=lambda one: (-one[2].element_bytes, one[2].key))
    return tuple(_placed(unplaced))


def header_of(chunks: tuple[Chunk, ...]) -> bytes:
    """The bytes of a rank's file before its chunks."""
    return encode_header([chunk.entry for chunk in chunks])


def _placed(found: list[tuple[str, Box, Entry]]) -> Iterator[Chunk]:
    begin = 0
    for name, box, entry in found:
        yield Chunk(name, box, entry, begin)
        begin += entry.size_bytes
