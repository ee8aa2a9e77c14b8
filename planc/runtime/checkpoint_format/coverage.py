"""Proof that the chunks of a tensor hold every element exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Protocol


class Box(Protocol):
    """A chunk's place in its tensor, in elements."""

    @property
    def offsets(self) -> tuple[int, ...]: ...
    @property
    def sizes(self) -> tuple[int, ...]: ...


class Boxed(Protocol):
    """A tensor that is stored in chunks: of a manifest, or of another format."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def chunks(self) -> tuple[Box, ...]: ...


def coverage_problem(tensor: Boxed) -> str | None:
    """The first problem of a tensor's chunks: one outside it, two that overlap, or elements in none."""
    for chunk in tensor.chunks:
        if not _is_within(chunk, shape=tensor.shape):
            return f"{_box(chunk)} is not a box within shape {list(tensor.shape)}"
    overlap = next(_overlaps(tensor), None)
    if overlap is not None:
        return f"{_box(overlap[0])} and {_box(overlap[1])} overlap"
    # Disjoint boxes within the tensor can only hold too few elements.
    absent = prod(tensor.shape) - sum(prod(chunk.sizes) for chunk in tensor.chunks)
    return f"{absent} of {prod(tensor.shape)} elements are in no chunk" if absent else None


def _is_within(chunk: Box, *, shape: tuple[int, ...]) -> bool:
    return len(chunk.offsets) == len(chunk.sizes) == len(shape) and all(
        size > 0 and offset + size <= length
        for offset, size, length in zip(chunk.offsets, chunk.sizes, shape, strict=True)
    )


def _overlaps(tensor: Boxed) -> Iterator[tuple[Box, Box]]:
    """Pairs of overlapping chunks, by a sweep along the tensor dim that is cut most often.

    A chunk is compared only with those that reach past its start, so a grid of m * n chunks with m >= n
    costs about m * n * n comparisons, not their square.
    """
    if not tensor.shape:
        yield from zip(tensor.chunks, tensor.chunks[1:], strict=False)
        return
    sweep = max(
        range(len(tensor.shape)),
        key=lambda tensor_dim: len({chunk.offsets[tensor_dim] for chunk in tensor.chunks}),
    )
    active: list[Box] = []
    for chunk in sorted(tensor.chunks, key=lambda chunk: chunk.offsets[sweep]):
        active = [
            other for other in active if other.offsets[sweep] + other.sizes[sweep] > chunk.offsets[sweep]
        ]
        yield from ((other, chunk) for other in active if _is_overlap(other, chunk))
        active.append(chunk)


def _is_overlap(one: Box, other: Box) -> bool:
    return all(
        offset < other_offset + other_size and other_offset < offset + size
        for offset, size, other_offset, other_size in zip(
            one.offsets, one.sizes, other.offsets, other.sizes, strict=True
        )
    )


def _box(chunk: Box) -> str:
    ranges = zip(chunk.offsets, chunk.sizes, strict=False)
    return f"chunk [{', '.join(f'{offset}:{offset + size}' for offset, size in ranges)}]"
