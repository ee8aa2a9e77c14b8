"""Run one rank of a fake world, and extrapolate its figures to the full number of layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

from planc.devices.segment import SMALL_BYTES, Segment
from planc.graph.graph import Graph
from planc.graph.ops import Accumulate, FullyShard
from planc.graph.pipeline import Pipeline, pipeline_of
from planc.pipelining.orders import Order
from planc.runtime.interpreter import run
from planc.runtime.observer import Observer, Together
from planc.runtime.process import Launch
from planc.runtime.ranks.groups import groups_of
from planc.runtime.rehearsal.backend import MEASURED_STEP, RehearsalBackend
from planc.runtime.rehearsal.findings import Measured, SegmentPeak, Sent
from planc.runtime.rehearsal.lives import Lives, repeated
from planc.runtime.rehearsal.memory import BEFORE
from planc.runtime.rehearsal.private import FakeStore, clear_redistribute_cache, clear_sharding_cache
from planc.runtime.rehearsal.stack import Stack, shortened
from planc.runtime.torch.run import Paths, Run
from planc.vocab import GroupDim

SentKey = tuple[str, str, tuple[int, ...], int]
Key = TypeVar("Key")
PeakKey = tuple[str, str, str]
"""(segment, "total" | "part" | "stream", its name)."""


@dataclass(frozen=True, slots=True)
class Figures:
    """All counts of one rank's step, each linear in the number of layers of a kind."""

    sent: Counter[SentKey] = field(default_factory=Counter)
    peaks: Counter[PeakKey] = field(default_factory=Counter)

    def plus(self, other: Figures, *, times: int) -> Figures:
        """These figures and `times` the others."""
        return Figures(_plus(self.sent, other.sent, times=times), _plus(self.peaks, other.peaks, times=times))

    def minus(self, other: Figures) -> Figures:
        """Return the figures that one more layer adds; segments that only `self` has are left out."""
        known = {segment for segment, _, _ in other.peaks}
        sent = _plus(self.sent, other.sent, times=-1)
        peaks = Counter({key: size - other.peaks[key] for key, size in self.peaks.items() if key[0] in known})
        return Figures(sent, peaks)


def _plus(one: Counter[Key], other: Counter[Key], *, times: int) -> Counter[Key]:
    return Counter({key: one[key] + times * other[key] for key in {**one, **other}})


def rehearse_rank(graph: Graph, rank: int, *, base: Path, dropped: frozenset[str]) -> None:
    """Run setup, one step and a save of one rank without the dropped layers; OpFailure if an op fails."""
    with fake_world(rank, world_size=graph.world_size):
        short = shortened(graph, dropped, num_steps=1, num_micro_steps=1)
        _run(short, rank, base=base, dropped=dropped)


def measure(graph: Graph, stack: Stack, *, base: Path, rank: int = 0) -> Measured:
    """Measure what a rank sends and holds with all layers: a short stack, and what each kind's layers add."""
    short = _backend_after(graph, rank, base=base, dropped=stack.dropped())
    first, lives = _figures(graph, short), short.memory.lives()
    whole = first
    for kind in stack.repeated:
        longer = _backend_after(graph, rank, base=base, dropped=stack.dropped(keeping=kind.left_out[0]))
        whole = whole.plus(_figures(graph, longer).minus(first), times=len(kind.left_out))
        lives = repeated(lives, kind.inner, times=len(kind.left_out))
    found = _measured(whole, first, groups=groups_of(graph, rank=rank), reserved=reserved_bytes(lives))
    return replace(found, rank=rank, notes=tuple(short.run.shown))


def _backend_after(graph: Graph, rank: int, *, base: Path, dropped: frozenset[str]) -> RehearsalBackend:
    """A rank's backend after the measured step without the dropped layers."""
    with fake_world(rank, world_size=graph.world_size):
        times = len(micro_steps(graph, rank))
        short = shortened(graph, dropped, num_steps=MEASURED_STEP, num_micro_steps=times)
        return _run(short, rank, base=base, dropped=dropped)


def _figures(graph: Graph, backend: RehearsalBackend) -> Figures:
    """A backend's counts for the measured step."""
    figures = Figures()
    (accumulate,) = (op for op in graph.step if isinstance(op, Accumulate))
    repeated_ops = {one.name for one in accumulate.body}
    stand_for = micro_steps(graph, backend.run.launch.rank)
    for (op, micro_step), recorder in backend.collectives.items():
        times = stand_for[micro_step] if op in repeated_ops else 1
        for (kind, ranks, num_bytes), count in recorder.calls.items():
            if len(ranks) > 1:
                figures.sent[op, kind, ranks, num_bytes] += count * times
    for segment, peak in backend.memory.peaks().items():
        if segment != BEFORE:
            figures.peaks[segment, "total", ""] = peak.num_bytes
            figures.peaks.update({(segment, "part", name): size for name, size in peak.parts})
            figures.peaks.update({(segment, "stream", name): size for name, size in peak.streams})
    return figures


def _run(short: Graph, rank: int, *, base: Path, dropped: frozenset[str]) -> RehearsalBackend:
    launch = Launch(rank=rank, world_size=short.world_size)
    # A rehearsal writes nothing, so the run directory is never used.
    paths, observer = Paths(base, base), Together(Observer())
    own = Run(
        short, "", launch, paths, observer, torch.device("cpu"), is_rehearsal=True, runs_extensions=True
    )
    backend = RehearsalBackend(own, dropped=dropped)
    run(short, backend)
    return backend


def _measured(
    whole: Figures, short: Figures, *, groups: Mapping[tuple[int, ...], tuple[GroupDim, ...]], reserved: int
) -> Measured:
    sent = tuple(
        Sent(op, kind, groups[ranks], len(ranks), num_bytes, count)
        for (op, kind, ranks, num_bytes), count in _in_whole_messages(whole.sent, short=short.sent).items()
        if count
    )
    names = dict.fromkeys(segment for segment, _, _ in whole.peaks)
    streams: Counter[str] = Counter()
    for (_, what, name), size in whole.peaks.items():
        if what == "stream":
            streams[name] = max(streams[name], size)
    segments = tuple(_segment(whole, name) for name in names)
    return Measured(0, sent, segments, held_bytes=sum(streams.values()), reserved_bytes=reserved)


def _in_whole_messages(sent: Counter[SentKey], *, short: Counter[SentKey]) -> Counter[SentKey]:
    """Correct the messages sent if some hold a part of every layer: one more layer makes them longer.

    Such a length of the short stack is then missing, as often as there are new lengths. The number of
    messages and their total bytes are linear. A message may grow to the length of another one.
    """
    growing = {key: count for key, count in sent.items() if count < 0 or key not in short}
    found = Counter({key: count for key, count in sent.items() if key not in growing})
    for alike in {key[:3] for key in growing}:
        lengths = [(key[3], count) for key, count in growing.items() if key[:3] == alike]
        number = sum(count for _, count in lengths)
        found[*alike, sum(length * count for length, count in lengths) // number] += number
    return found


def _segment(whole: Figures, name: str) -> SegmentPeak:
    def of(what: str) -> tuple[tuple[str, int], ...]:
        return tuple((key[2], size) for key, size in whole.peaks.items() if key[:2] == (name, what) and size)

    reserved = sum(size for _, size in of("stream"))
    return SegmentPeak(name, whole.peaks[name, "total", ""], of("part"), reserved)


@contextmanager
def fake_world(rank: int, *, world_size: int) -> Iterator[None]:
    """Makes this process rank `rank` of `world_size`: collectives send nothing and return at once.

    ValueError inside a real process group, which the rehearsal would replace.
    """
    if dist.is_initialized():
        raise ValueError("a rehearsal needs a process of its own: a process group exists already")
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield
    finally:
        clear_sharding_cache()
        clear_redistribute_cache()
        dist.destroy_process_group()


def micro_steps(graph: Graph, rank: int) -> tuple[int, ...]:
    """Return how many micro-steps of a step each one that is run represents.

    Without a pipeline there are two: the last, in which gradients are reduced, and one for all before it; and
    the first, if no other gathers parameters.
    """
    pipeline = pipeline_of(graph)
    if pipeline is None:
        (times,) = (op.times for op in graph.step if isinstance(op, Accumulate))
        gathers_once = any(isinstance(op, FullyShard) and not op.reshard_after_backward for op in graph.setup)
        first = (1,) if gathers_once and times > 1 else ()
        rest = times - len(first)
        return (*first, rest - 1, 1) if rest > 1 else (*first, 1)
    return _of_pipeline(pipeline, pipeline.orders[rank * pipeline.num_ranks // graph.world_size])


def _of_pipeline(pipeline: Pipeline, order: Order) -> tuple[int, ...]:
    """Micro-steps in flight at first, then a round in which forwards and backwards alternate, then the
    last ones. The round is like all those that are left out."""
    number, in_a_round = pipeline.num_micro_batches, pipeline.num_ranks
    in_flight = _in_flight(order)
    left_out = max(0, number - 2 * in_flight - 2 * in_a_round) // in_a_round
    found = [1] * (number - left_out * in_a_round)
    for micro_step in range(in_flight, in_flight + in_a_round) if left_out else ():
        found[micro_step] += left_out
    return tuple(found)


def _in_flight(order: Order) -> int:
    """The most micro-batches between their first action and their last."""
    last = {one.micro_batch: place for place, one in enumerate(order)}
    now: set[int] = set()
    most = 0
    for place, action in enumerate(order):
        now.add(action.micro_batch)
        most = max(most, len(now))
        if last.get(action.micro_batch) == place:
            now.remove(action.micro_batch)
    return most


def reserved_bytes(lives: Lives) -> int:
    """The bytes that CUDA's caching allocator reserves for a run: the sum of the ends of all segments.

    It uses expandable segments (PYTORCH_CUDA_ALLOC_CONF): every stream has a segment for small blocks and one
    for large ones.
    """
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
