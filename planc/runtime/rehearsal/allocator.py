"""The memory that CUDA's caching allocator reserves for a sequence of allocations.

The allocator uses expandable segments (PYTORCH_CUDA_ALLOC_CONF): every stream has a segment for small blocks
and one for large ones.
"""

from __future__ import annotations

from planc.devices.segment import SMALL_BYTES, Segment
from planc.runtime.rehearsal.lives import Lives


def reserved_bytes(lives: Lives) -> int:
    """The sum of the ends of all segments after a run."""
    events: list[tuple[tuple[int, int], bool, int]] = []
    for index, life in enumerate(lives.blocks):
        events.append((life.made, True, index))
        if life.freed is not None:
            events.append((life.freed, False, index))
    # At the same moment, frees come first.
    events.sort()
    segments: dict[tuple[str, bool], Segment] = {}
    starts: dict[int, int] = {}
    for _, is_made, index in events:
        life = lives.blocks[index]
        segment = segments.setdefault((life.stream, life.num_bytes <= SMALL_BYTES), Segment())
        if is_made:
            starts[index] = segment.take(life.num_bytes)
        else:
            segment.give(starts.pop(index), num_bytes=life.num_bytes)
    return sum(segment.end for segment in segments.values())
