"""Ranks agree where a run stops early, after some were asked to, and which step the clock has saved."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from planc.graph.ops import SaveCheckpoint
from planc.runtime.stopping.grace import Stretches, agent_command, grace_seconds
from planc.runtime.stopping.stop_points import LONG_STEP_SECONDS, StopPoints
from planc.runtime.torch.run import Run

_SAVE = 0.5
"""Rank 0's part of a sum of requests if a save is due by its clock; each request to stop adds 1."""


class Stopping:
    """Whether the run ends early: all ranks know, at the same point of it."""

    def __init__(self, run: Run) -> None:
        self.is_stopping = False
        """The run ends once everything new is saved."""
        self.has_asked = False
        """Ranks have summed the stop requests once: before the first step, no metrics are summed."""
        self.save_is_due = False
        """The clock of rank 0 asks for a save of this step."""
        self._run = run
        self._save_seconds = _save_seconds(run) if run.launch.rank == 0 else None
        self._save_began = time.monotonic()
        self._points = run.stop_points or StopPoints(run.notice)
        self._stretches = Stretches()
        self._has_warned = False

    def own_request(self) -> float:
        """A number to sum with the step's loss: 1 if this rank was asked to stop, and rank 0's clock."""
        seconds = self._save_seconds
        is_due = seconds is not None and time.monotonic() - self._save_began >= seconds
        return float(bool(self._run.notice.signal_name)) + _SAVE * is_due

    def save_begins(self) -> float:
        """Count the time to the next save from here; return the clock's."""
        self._save_began, self.save_is_due = time.monotonic(), False
        return self._save_began

    def _read(self, requests: float) -> None:
        """Take the sum of all ranks' requests."""
        self.is_stopping = self.is_stopping or requests >= 1
        self.save_is_due, self.has_asked = requests % 1 == _SAVE, True

    def take(self, requests: float, *, began: float, num_micro_batches: int) -> None:
        """Take the sum of all ranks' requests in a step that began at this time of `time.perf_counter`."""
        self._read(requests)
        # A first step compiles, and may take minutes that no other takes.
        if self._run.notice.has_trained:
            seconds = time.perf_counter() - began
            if seconds <= LONG_STEP_SECONDS:
                self._stretches.add("a step", seconds)
            else:
                self._stretches.add("a micro-batch", seconds / num_micro_batches)

    def stops_here(self, *, in_step: bool = False) -> bool:
        """Whether the run stops at this point: the same on every rank. Every rank must call it.

        `in_step` is for a point between two micro-batches of a step, which is abandoned only if steps are
        long.
        """
        if not self.is_stopping:
            self.is_stopping = self._points.reached(in_step=in_step)
        return self.is_stopping

    def ends_after(self, *, step: int) -> bool:
        """Whether any rank was asked to stop by now, when `step` is done; the same on every rank."""
        run, notice = self._run, self._run.notice
        if not self.has_asked:
            requests = torch.tensor(self.own_request(), device=run.device)
            if run.launch.world_size > 1:
                dist.all_reduce(requests)
            self._read(requests.item())
        notice.step = step
        self._points.step_began()
        notice.is_agreed = self.stops_here()
        return notice.is_agreed

    def ends_early(self) -> bool:
        """Whether any rank's program asked to end the run; the same on every rank, and all must call it."""
        run, notice = self._run, self._run.notice
        if not notice.may_end_early:
            return False
        requests = torch.tensor(float(notice.ends_early), device=run.device)
        if run.launch.world_size > 1:
            dist.all_reduce(requests)
        notice.ends_early = bool(requests.item() > 0)
        return notice.ends_early

    def report_undone(self, what: str) -> None:
        """Report that the run ends without `what`; the same command does it later."""
        notice = self._run.notice
        notice.is_agreed = True
        notice.undone.append(what)
        self._run.observer.noted(f"stop requested: {what} is left undone")

    @contextmanager
    def stretch(self, name: str) -> Iterator[None]:
        """Measure a stretch that the run can't interrupt, for `warn_of_grace`."""
        began = time.perf_counter()
        yield
        self._stretches.add(name, time.perf_counter() - began)

    def warn_of_grace(self, *, seconds: float) -> None:
        """Warn once if stopping takes longer than torchrun waits: a save, and the stretch before it."""
        stretches = self._stretches
        stretches.save_seconds = max(stretches.save_seconds, seconds)
        grace = grace_seconds(os.environ, agent_command(os.getppid()))
        if stretches.total_seconds <= grace or self._has_warned:
            return
        self._has_warned = True
        name, before = stretches.between
        after = f" after {name} of {before:.0f} s" if before >= 1 else ""
        self._run.observer.noted(
            f"a checkpoint takes {seconds:.0f} s{after}, but torchrun kills processes {grace} s after a "
            f"signal: start it with --shutdown-timeout {2 * round(stretches.total_seconds)}, or a stopped "
            "run loses its progress since the last save"
        )


def _save_seconds(run: Run) -> int | None:
    """The time between saves, in a plan that saves by the clock."""
    return next((op.every_seconds for op in run.graph.save if isinstance(op, SaveCheckpoint)), None)
