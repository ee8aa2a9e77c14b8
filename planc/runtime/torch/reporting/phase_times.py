"""The time of each phase of a step on this rank, by the device's clock if it has one, else the host's."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import torch

from planc.graph.op import Phase


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
