"""The time that a rank works by itself in a step: all steps take equally long, because ranks wait for the
slowest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from planc.graph.op import Op, Resource, Stage
from planc.runtime.torch import private


class OwnTime:
    """Counts time outside of collectives, on its thread, from a step's first op to its last.

    On CPUs a thread waits for a collective inside functions of torch that are wrapped for it, once and for
    all: only in a process that is one rank. A device's queue waits by itself, which is invisible here: there,
    only the reading of data and ops that do not communicate count, and a slow device is not detected.
    Collectives in compiled code are not seen either; then all ranks' times are equal, and no rank is
    reported.
    """

    def __init__(self, *, has_device_queue: bool, shares: Sequence[float] | None = None) -> None:
        self.stragglers = Stragglers(shares)
        self._has_device_queue = has_device_queue
        self._op: Op | None = None
        self._began_ns = self._waited_ns = self._own_ns = self._num_steps = 0
        if not has_device_queue:
            _wrap_waits()

    def enter(self, op: Op) -> None:
        """Begin an op, which ends the one before it."""
        now, waited_ns = time.perf_counter_ns(), _waits.num_ns
        if self._op is not None and self._op.stage is Stage.STEP and self._shows(self._op):
            self._own_ns += now - self._began_ns - (waited_ns - self._waited_ns)
        self._op, self._began_ns, self._waited_ns = op, now, waited_ns

    def _shows(self, op: Op) -> bool:
        if not self._has_device_queue:
            return True
        effects = op.effects()
        # The host waits for the device, and so for other ranks, where it reads a verdict.
        return not effects.communicates and Resource.VERDICT not in effects.writes

    def add_reading(self, reading_ns: int) -> None:
        """Count the reading of a new step's batch, in an op that then communicates."""
        self._num_steps += 1
        if self._has_device_queue:
            self._own_ns += reading_ns

    def take(self) -> tuple[int, int]:
        """Own nanoseconds and the number of steps since the last call."""
        found = self._own_ns, self._num_steps
        self._own_ns = self._num_steps = 0
        return found


class _Waits(threading.local):
    """The time that this thread has waited for collectives."""

    num_ns = 0


_waits = _Waits()


@cache
def _wrap_waits() -> None:
    for owner, name in private.WAITS:
        setattr(owner, name, _counted(getattr(owner, name)))


def _counted(wait: Callable[..., Any]) -> Callable[..., Any]:
    def counted(*arguments: Any, **options: Any) -> Any:
        # A graph can't have a clock.
        if torch.compiler.is_compiling():
            return wait(*arguments, **options)
        began = time.perf_counter_ns()
        try:
            return wait(*arguments, **options)
        finally:
            _waits.num_ns += time.perf_counter_ns() - began

    return counted


_Seconds = Sequence[float] | npt.NDArray[np.float64]

_FACTOR = 1.5
"""Times the other ranks' median: a rank that takes longer for its own part of a step straggles."""
_LEAST_SECONDS = 0.02
"""Seconds above the median, as well: short steps differ by what else a machine does."""
_STEPS = 5
"""Steps that are judged together."""
_MAX_NAMED = 8


@dataclass(frozen=True, slots=True)
class _Straggler:
    """A rank's own time for a step, and the median of the others', in seconds.

    `is_scaled`: the others have more or less of a pipeline to compute, and their time is scaled to its part.
    """

    rank: int
    seconds: float
    others_seconds: float
    is_scaled: bool = False

    def __str__(self) -> str:
        ratio = f"{self.seconds / self.others_seconds:.1f} times" if self.others_seconds else "more than"
        return (
            f"rank {self.rank} straggles: its own work takes {self.seconds:.3f} s per step, "
            f"{ratio} the others' median of {self.others_seconds:.3f} s"
            f"{', scaled to its stages' if self.is_scaled else ''}"
        )


@dataclass(slots=True)
class Stragglers:
    """Judges ranks by the times that they log; a rank is reported when it stands out twice in a row.

    `shares` are the parts of a step's work that ranks have; None if all have the same.
    """

    shares: Sequence[float] | None = None
    named: tuple[int, ...] = ()
    """The ranks that straggle now."""
    _suspects: frozenset[int] = frozenset()
    _sums: npt.NDArray[np.float64] | None = None
    _num_steps: int = 0

    def add(self, seconds: _Seconds, *, num_steps: int) -> tuple[_Straggler, ...]:
        """The ranks that straggle now but did not before. `seconds` are each rank's total."""
        self._sums = np.asarray(seconds, dtype=np.float64) + (0.0 if self._sums is None else self._sums)
        self._num_steps += num_steps
        if self._num_steps < _STEPS:
            return ()
        found = standing_out(self._sums / self._num_steps, shares=self.shares)
        self._sums, self._num_steps = None, 0
        slow = frozenset(one.rank for one in found)
        # Once may be chance; a reported rank stays reported until it keeps up again.
        confirmed = tuple(one for one in found if one.rank in self._suspects)
        new = tuple(one for one in confirmed if one.rank not in self.named)
        self.named = tuple(one.rank for one in confirmed)
        self._suspects = slow
        return new


def standing_out(seconds: _Seconds, *, shares: Sequence[float] | None = None) -> tuple[_Straggler, ...]:
    """The ranks whose seconds for their shares stand out from those of the others: at most eight, the
    slowest first."""
    own = np.asarray(seconds, dtype=np.float64)
    scale = np.ones_like(own) if shares is None else np.asarray(shares, dtype=np.float64)
    alike = own / scale
    unseen, stragglers = alike.copy(), list[_Straggler]()
    for _ in range(min(_MAX_NAMED, len(own)) if len(own) > 1 else 0):
        rank = int(unseen.argmax())
        others = float(np.median(np.delete(alike, rank))) * float(scale[rank])
        if own[rank] <= _FACTOR * others:
            # A faster rank has a slower one among the others: it stands out even less.
            break
        if own[rank] - others > _LEAST_SECONDS:
            stragglers.append(_Straggler(rank, float(own[rank]), others, shares is not None))
        unseen[rank] = -np.inf
    return tuple(stragglers)
