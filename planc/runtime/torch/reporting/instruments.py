"""A backend's instruments around its handlers: clocks, the watch, traces, logs, and the line of a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

from torch.profiler import profile, record_function

from planc.graph.op import Op, Stage
from planc.graph.ops import NextBatch
from planc.runtime.interpreter import Position
from planc.runtime.ranks.rank_log import RankLog
from planc.runtime.torch.reporting.first_step import FirstStep
from planc.runtime.torch.reporting.line import Line
from planc.runtime.torch.reporting.own_time import OwnTime
from planc.runtime.torch.reporting.phase_times import PhaseClock
from planc.runtime.torch.reporting.readers import Readers
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import Batch, Verdict
from planc.runtime.trackers import Following


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
