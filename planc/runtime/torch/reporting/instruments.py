"""A backend's instruments around its handlers: clocks, the watch, traces, logs, and the line of a step."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch.profiler import profile, record_function

from planc.graph.op import Op, Phase, Stage
from planc.graph.ops import NextBatch
from planc.runtime.interpreter import Position
from planc.runtime.observer import Observer, StepMetrics
from planc.runtime.ranks.rank_log import RankLog
from planc.runtime.torch.copies import Arrival
from planc.runtime.torch.reporting.first_step import FirstStep
from planc.runtime.torch.reporting.own_time import OwnTime
from planc.runtime.torch.reporting.readers import Readers
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import Batch, Verdict
from planc.runtime.torch.training.balance import Balance
from planc.runtime.torch.training.expert_load import ExpertLoad
from planc.runtime.trackers import Following


@dataclass(frozen=True, slots=True)
class Line:
    """A step's metrics without the most of any rank: memory, compiled graphs, time by phase, own time."""

    metrics: StepMetrics
    num_memory: int
    has_graphs: bool
    phases: tuple[str, ...]
    num_steps: int
    """The steps of the ranks' own times."""
    most: Arrival
    load: Arrival | None = None
    """The tokens of experts; None in a line that an evaluation alone asks for."""
    experts: ExpertLoad | None = None
    added: Arrival | None = None
    """The sums of the losses that are added; None as `load` is."""
    balance: Balance | None = None

    def write(self, observer: Observer, own_time: OwnTime | None) -> None:
        """Report it. The host waits if a maximum is not there."""
        most: npt.NDArray[np.int64] = self.most.values().numpy()
        times = most[self.num_memory + self.has_graphs :]
        phase_seconds = {phase: int(ns) / 1e9 for phase, ns in zip(self.phases, times, strict=False)}
        balance, z = self.balance.values(self.added) if self.balance and self.added else (None, None)
        load = self.experts.by_layer(self.load) if self.experts and self.load else {}
        metrics = replace(
            self.metrics,
            memory_bytes=int(most[0]),
            memory_reserved_bytes=int(most[1]) if self.num_memory > 1 else None,
            compiled_graphs=int(most[self.num_memory]) if self.has_graphs else None,
            phase_seconds=phase_seconds,
            expert_load=load,
            expert_dropped=self.experts.dropped(self.load) if self.experts and self.load else {},
            balance_loss=balance,
            z_loss=z,
            stragglers=self._note_stragglers(observer, own_time, times[len(self.phases) :]),
        )
        for found in self.experts.newly_starving(load) if self.experts and load else ():
            observer.noted(f"warning: step {self.metrics.step}: {found}")
        observer.stepped(metrics)

    def _note_stragglers(
        self, observer: Observer, own_time: OwnTime | None, own_ns: npt.NDArray[np.int64]
    ) -> tuple[int, ...]:
        """The ranks that slow down the others, the same on every rank; new ones are reported."""
        if own_time is None:
            return ()
        stragglers = own_time.stragglers
        for found in stragglers.add(own_ns / 1e9, num_steps=self.num_steps):
            observer.noted(f"warning: step {self.metrics.step}: {found}")
        return stragglers.named


@dataclass(frozen=True, slots=True)
class _Mark:
    """The moment at which a phase began; `event` is in the device's own queue, where work is done later."""

    phase: Phase
    host_ns: int
    event: torch.cuda.Event | None

    def until(self, later: _Mark) -> int:
        """Nanoseconds until `later`. A save waits for the disk, which the device's clock does not show."""
        if self.event is None or later.event is None or self.phase is Phase.CHECKPOINT:
            return later.host_ns - self.host_ns
        return int(self.event.elapsed_time(later.event) * 1e6)


class PhaseClock:
    """Marks the changes of phase, and never waits for the device.

    The time of a device's queue is known up to the last mark before the host waited for it: what comes after
    counts toward the next reading, as saves do.
    """

    def __init__(self, *, has_queue: bool) -> None:
        self._has_queue = has_queue
        self._marks: list[_Mark] = []
        self._num_settled = 0
        self._saving_ns = 0

    def enter(self, phase: Phase) -> None:
        """Begin or continue a phase."""
        if not self._marks or self._marks[-1].phase != phase:
            self._marks.append(self._now(phase))

    def settle(self) -> None:
        """The host has waited for the device, which has passed all marks so far."""
        self._num_settled = len(self._marks)

    def begin_step(self) -> None:
        """Forget the previous step, but not its saves: they come after its metrics."""
        self._saving_ns += sum(
            mark.until(later) for mark, later in self._take() if mark.phase is Phase.CHECKPOINT
        )

    def read(self) -> dict[str, int]:
        """Nanoseconds by phase, in the order of `Phase`: of this step, and of saves since the last call."""
        if self._marks and not self._has_queue:
            self._marks.append(self._now(self._marks[-1].phase))
        found: dict[str, int] = dict.fromkeys(Phase, 0)
        for mark, later in self._take():
            found[mark.phase] += mark.until(later)
        found[Phase.CHECKPOINT] += self._saving_ns
        self._saving_ns = 0
        return found

    def _take(self) -> Iterable[tuple[_Mark, _Mark]]:
        """The spans whose time is known; they are forgotten."""
        if not self._has_queue:
            self.settle()
        known = self._marks[: self._num_settled]
        self._marks = self._marks[max(0, self._num_settled - 1) :]
        self._num_settled = min(1, self._num_settled)
        return pairwise(known)

    def _now(self, phase: Phase) -> _Mark:
        event = None
        if self._has_queue:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
        return _Mark(phase, time.perf_counter_ns(), event)


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace under way."""

    profiler: profile
    first_step: int
    has_memory: bool


@dataclass(slots=True)
class Instruments:
    """The instruments of one rank."""

    run: Run
    first_step: FirstStep | None = None
    """None if collectives are not counted, or no longer."""
    own_time: OwnTime | None = None
    """None if ranks are not compared."""
    trace: Trace | None = None
    """The trace under way, in the steps that the plan profiles."""
    line: Line | None = None
    """The last logged step's, until it is written."""
    rank_log: RankLog | None = None
    readers: Readers | None = None
    """The readers of the program that started the run."""
    following: Following | None = None
    """The trackers, if the plan names any and this is rank 0."""
    clock: PhaseClock = field(init=False)

    def __post_init__(self) -> None:
        self.clock = PhaseClock(has_queue=self.run.has_queue)

    def enter(self, op: Op, at: Position) -> None:
        """Begin an op."""
        if at.step == 0:
            self.run.observer.preparing(f"{op.name}: {op.summary}")
        if self.line is not None and (op.stage is Stage.SAVE or self.line.most.is_there()):
            # It is complete, and is written before a save in any case.
            self.write_line()
        self.clock.enter(op.phase)
        if type(op) is NextBatch:
            self.clock.begin_step()
        if self.own_time is not None:
            self.own_time.enter(op)
        if self.run.watch is not None:
            self.run.watch.enter(op, step=at.step, micro_step=at.micro_step)

    @contextmanager
    def around(self, op: Op, at: Position) -> Iterator[None]:
        """The context of an op that is traced, or whose collectives are counted."""
        # A trace shows the plan's own ops, with their lines, around PyTorch's.
        shown = record_function(f"{op.name} {op.span or ''}".rstrip()) if self.trace else nullcontext()
        with shown, self.first_step.counting(op, at) if self.first_step else nullcontext():
            yield

    def has_read(self, batch: Batch) -> None:
        """A step has its batch."""
        if self.own_time is not None:
            self.own_time.add_reading(batch.reading_ns)

    def has_decided(self) -> None:
        """The host has waited for the device, to read a verdict."""
        self.clock.settle()

    def compare(self, op: Op, at: Position, verdict: Verdict | None) -> None:
        """After an op: RunError if it ends a count of collectives that differs from the predicted one."""
        if self.first_step is not None:
            norm = verdict.gradient_norm if verdict is not None else 0.0
            self.first_step.compare(self.run, op, at, gradient_norm=norm)
            if self.first_step.is_over:
                self.first_step = None

    def write_line(self) -> None:
        """Report the line that is not written yet, if there is one. The host waits if it is not complete."""
        line, self.line = self.line, None
        if line is not None:
            line.write(self.run.observer, self.own_time)
