"""The time that a rank works by itself in a step: all steps take equally long, because ranks wait for the
slowest."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from planc.graph.op import Op, Resource, Stage
from planc.runtime.torch import private
from planc.runtime.torch.reporting.stragglers import Stragglers


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
