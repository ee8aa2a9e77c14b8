"""The longest that a test may take by the clock: then it fails where it waits, and the next one begins."""

from __future__ import annotations

import faulthandler
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

LIMIT_SECONDS = 1200.0
"""For a test's setup, its call and its teardown, each: a busy machine needs minutes for the longest."""
SLOW_LIMIT_SECONDS = 4 * 3600.0
_AGAIN_SECONDS = 30.0
"""Until the next failure is raised: clean-up may wait for the same."""
_GRACE_SECONDS = 120.0
"""Until the process ends, where a library waits without hearing signals: xdist starts another one."""


@contextmanager
def limited(name: str, *, seconds: float, trace: int) -> Iterator[None]:
    """Fail the block after so many seconds; `trace` is a file descriptor for the stacks of all threads."""

    def fail(number: int, frame: FrameType | None) -> None:
        faulthandler.dump_traceback(trace)
        pytest.fail(f"{name}: not ended within {seconds:.0f} s; it waits in the last frame of this stack")

    before = signal.signal(signal.SIGALRM, fail)
    faulthandler.dump_traceback_later(seconds + _GRACE_SECONDS, exit=True, file=trace)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)
