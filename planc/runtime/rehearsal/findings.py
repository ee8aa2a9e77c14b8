"""The results of a rehearsal, as data."""

from __future__ import annotations

from dataclasses import dataclass

from planc.source import Span
from planc.vocab import GroupDim


@dataclass(frozen=True, slots=True)
class Failure:
    """An op that would fail on a rank: for a reason in the plan, the model or both."""

    rank: int
    message: str
    """Names the op, the step and the rank's place in the mesh, as a run would."""
    span: Span | None
    help: str | None = None
    """None for an unexpected error, whose message is PyTorch's."""


@dataclass(frozen=True, slots=True)
class Sent:
    """`count` equal collectives of one step, called by one op of the graph."""

    op: str
    kind: str
    over: tuple[GroupDim, ...]
    """The mesh dims of more than one rank that form the group."""
    group_size: int
    input_bytes: int
    count: int


@dataclass(frozen=True, slots=True)
class SegmentPeak:
    """The peak memory of a part of a step, in bytes."""

    segment: str
    num_bytes: int
    parts: tuple[tuple[str, int], ...]
    streams_bytes: int
    """The sum of each stream's peak in this segment."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One rank's training step, for the whole model."""

    rank: int
    sent: tuple[Sent, ...]
    segments: tuple[SegmentPeak, ...]
    held_bytes: int
    """The sum of every stream's own peak: another stream can't reuse memory freed on this one."""
    reserved_bytes: int
    """The bytes that the allocator reserves on the device for that, including the gaps between blocks."""
    notes: tuple[str, ...] = ()
    """The results of the trials of the plan's own code."""

    @property
    def peak(self) -> SegmentPeak:
        return max(self.segments, key=lambda segment: segment.num_bytes)


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A rehearsed graph: every rank that was tried, and what one of them sends and holds."""

    ranks: tuple[int, ...]
    num_layers: int
    num_rehearsed_layers: int
    failures: tuple[Failure, ...]
    measured: Measured | None
    """None if it failed."""
