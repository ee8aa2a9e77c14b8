"""CUDA's caching allocator on one stream's memory, under expandable segments.

A segment grows at its end, and never gives anything back. A block goes into the smallest gap that holds it,
the first of equals; gaps side by side become one (torch c10/cuda/CUDACachingAllocator.cpp). What no block
fits into is reserved all the same, so a device holds more than its tensors take.
"""

from __future__ import annotations

from bisect import bisect_left, insort

SMALL_BYTES = 2**20
"""Blocks up to this size have a segment of their own, which no larger block goes into."""


class Segment:
    """Addresses from 0 to `end`; everything in bytes."""

    def __init__(self) -> None:
        self.end = 0
        self._gaps: list[tuple[int, int]] = []
        """(size, start), ascending."""
        self._by_start: dict[int, int] = {}
        self._by_end: dict[int, int] = {}

    def take(self, num_bytes: int) -> int:
        """The address of a new block."""
        index = bisect_left(self._gaps, (num_bytes, 0))
        if index == len(self._gaps):
            # It starts in the gap at the end, if there is one.
            start = self._by_end.get(self.end, self.end)
            self._remove(start)
            self.end = start + num_bytes
            return start
        size, start = self._gaps[index]
        self._remove(start)
        if size > num_bytes:
            self._add(start + num_bytes, start + size)
        return start

    def give(self, start: int, *, num_bytes: int) -> None:
        """Frees a block."""
        first = self._by_end.get(start, start)
        end = start + num_bytes
        last = self._by_start.get(end, end)
        self._remove(first)
        self._remove(end)
        self._add(first, last)

    def _add(self, start: int, end: int) -> None:
        insort(self._gaps, (end - start, start))
        self._by_start[start], self._by_end[end] = end, start

    def _remove(self, start: int) -> None:
        """Forgets the gap that starts there, if any does."""
        end = self._by_start.pop(start, None)
        if end is not None:
            del self._by_end[end]
            del self._gaps[bisect_left(self._gaps, (end - start, start))]
