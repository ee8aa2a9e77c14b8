"""How long each phase of a step took on this rank, by the device's clock if it has one, else the host's."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import torch

from planc.runtime.step_phases import CHECKPOINT, PHASES


@dataclass(frozen=True, slots=True)
class _Mark:
    """The moment at which a phase began; `event` is in the device's own queue, where work is done later."""

    phase: str
    host_ns: int
    event: torch.cuda.Event | None

    def until(self, later: _Mark) -> int:
        """Nanoseconds until `later`. A save waits for the disk, which the device's clock does not show."""
        if self.event is None or later.event is None or self.phase == CHECKPOINT:
            return later.host_ns - self.host_ns
        return int(self.event.elapsed_time(later.event) * 1e6)


class PhaseClock:
    """Marks the changes of phase. It does not synchronize until it is read."""

    def __init__(self, device: torch.device) -> None:
        self._has_events = device.type == "cuda"
        self._marks: list[_Mark] = []
        self._saving_ns = 0

    def enter(self, phase: str) -> None:
        """Begin or continue a phase."""
        if not self._marks or self._marks[-1].phase != phase:
            self._marks.append(self._now(phase))

    def begin_step(self) -> None:
        """Forget the previous step, but not its saves: they come after its metrics."""
        self._saving_ns += sum(mark.until(later) for mark, later in self._spans() if mark.phase == CHECKPOINT)
        self._marks = self._marks[-1:]

    def read(self) -> dict[str, int]:
        """Nanoseconds by phase, in the order of PHASES: of this step, and of saves since the last call."""
        if self._marks:
            self._marks.append(self._now(self._marks[-1].phase))
            if (last := self._marks[-1].event) is not None:
                last.synchronize()
        found = dict.fromkeys(PHASES, 0)
        for mark, later in self._spans():
            found[mark.phase] += mark.until(later)
        found[CHECKPOINT] += self._saving_ns
        self._saving_ns, self._marks = 0, self._marks[-1:]
        return found

    def _spans(self) -> Iterable[tuple[_Mark, _Mark]]:
        return pairwise(self._marks)

    def _now(self, phase: str) -> _Mark:
        event = None
        if self._has_events:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
        return _Mark(phase, time.perf_counter_ns(), event)
