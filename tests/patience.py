"""How long a test waits for what may never end. What planc should take is for scripts to measure."""

from __future__ import annotations

import math
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE_SECONDS = 20.0
"""Of the processor, for what takes a tenth of it or less: no slow machine needs it, and what grows without
bound does."""

WAIT_SECONDS = 300.0
"""By the clock, for what an idle machine does in seconds: a busy one takes ten times longer."""

_SPIN_SECONDS = 0.3
_BUSYNESS = "TESTS_BUSYNESS"


@contextmanager
def patient(process: subprocess.Popen[Any], awaited: str, *, seconds: float = WAIT_SECONDS) -> Iterator[None]:
    """Kill the process if the block takes too long; AssertionError then names what was awaited."""
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        process.kill()

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if is_late.is_set():
            raise AssertionError(f"{awaited}: not within {seconds:.0f} s")


def wait_until(is_so: Callable[[], bool], awaited: str, *, seconds: float = WAIT_SECONDS) -> None:
    """Return once it is so; AssertionError names what was awaited too long."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, f"{awaited}: not within {seconds:.0f} s"
        time.sleep(0.01)


def unhurried(seconds: int) -> int:
    """So many seconds on an idle machine, more on a busy one: for a timeout that no sound rank may reach."""
    return math.ceil(seconds * _busyness())


def _busyness() -> float:
    """How busy the machine was when the first of these tests' processes asked: 1 if it had little else to do.

    Processes that a test starts must have the same timeouts as the test itself.
    """
    if _BUSYNESS not in os.environ:
        factor = max(os.getloadavg()[0] / (os.cpu_count() or 1), _slowdown())
        os.environ[_BUSYNESS] = str(min(factor, 10.0) if factor > 1.5 else 1.0)
    return float(os.environ[_BUSYNESS])


def is_within(seconds: float, limit: float) -> bool:
    """Whether something took less than `limit` seconds, or would have on a machine that does nothing else."""
    return seconds < limit or seconds < limit * _slowdown()


def _slowdown() -> float:
    """How many times longer the processor takes for this process than if it had nothing else to do."""
    began, used = time.monotonic(), time.thread_time()
    while time.thread_time() - used < _SPIN_SECONDS:
        pass
    return (time.monotonic() - began) / _SPIN_SECONDS
