"""Writes that training does not depend on: tried again, then given up and reported. They never end a run.

A run makes two kinds of writes. Training state is what a resume reads: a save that fails ends the run. All
others go through `BestEffort.attempt`: status, metrics, logs, the ranks' records, traces, and the deletion of
old files. On a network file system any of them may fail once, and some fail for as long as another program
has a file open.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from planc.runtime.files import plain_files
from planc.tables import plural

T = TypeVar("T")
Errors = tuple[type[Exception], ...]

_WAIT_SECONDS = (0.05, 0.5)
"""Before each further try: an answer such as ESTALE is usually the only one."""
MAX_WAITING = 10_000
"""Lines that wait for their file."""


def retried(action: Callable[[], T], *, errors: Errors = (OSError,)) -> T:
    """The result of `action`, which may run three times; its error if it fails each time."""
    for seconds in _WAIT_SECONDS:
        try:
            return action()
        except errors:
            time.sleep(seconds)
    return action()


class BestEffort:
    """One process's attempts, by any of its threads. `say` prints a line for the user."""

    def __init__(self, say: Callable[[str], None] = warnings.warn) -> None:
        self.say = say
        self._lock = threading.Lock()
        self._num_failures: dict[str, int] = {}
        self._failing: set[str] = set()

    @property
    def num_failures(self) -> dict[str, int]:
        """The failures of each attempt, those that were tried again too."""
        with self._lock:
            return dict(self._num_failures)

    def attempt(
        self, what: str, action: Callable[[], T], *, errors: Errors = (OSError,), is_once: bool = False
    ) -> T | None:
        """The result of `action`; None if it failed, which is reported once.

        `what` completes "cannot ...". What failed the last time is tried only once, so training does not wait
        for it again; so is what `is_once`, which tries again by itself.
        """
        try:
            result = action() if is_once or what in self._failing else retried(action, errors=errors)
        except errors as error:
            self._failed(what, error)
            return None
        self._succeeded(what)
        return result

    def _failed(self, what: str, error: Exception) -> None:
        with self._lock:
            is_first = what not in self._num_failures
            self._num_failures[what] = self._num_failures.get(what, 0) + 1
            self._failing.add(what)
        if is_first:
            reason = (isinstance(error, OSError) and error.strerror) or str(error)
            self.say(f"warning: cannot {what}: {reason} (training does not depend on it)")

    def _succeeded(self, what: str) -> None:
        with self._lock:
            was_failing = what in self._failing
            self._failing.discard(what)
        if was_failing:
            failures = plural(self._num_failures[what], "failed attempt")
            self.say(f"it was possible again, after {failures}, to {what}")


class Lines:
    """A file that grows by whole lines. Lines that can't be written wait for the next one that can."""

    def __init__(self, path: Path, effort: BestEffort) -> None:
        self.path, self._effort = path, effort
        self._waiting: deque[str] = deque(maxlen=MAX_WAITING)

    def append(self, line: str) -> None:
        """Add a line, without its newline."""
        self._waiting.append(line)
        self.flush()

    def flush(self) -> None:
        """Write the lines that wait, if any do."""
        if self._waiting:
            self._effort.attempt(f"write {self.path}", self._write)

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        plain_files.append(self.path, "".join(f"{line}\n" for line in self._waiting).encode())
        self._waiting.clear()
