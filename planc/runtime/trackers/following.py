"""Isolate trackers from training: each has a thread, and neither its errors nor its waits stop a step."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from planc.runtime.observer import Evaluation, Observer, StepMetrics
from planc.runtime.trackers.tracker import Open, Opening, Tracker, values_of, values_of_evaluation
from planc.tables import plural

MAX_WAITING = 1000
"""Steps that a tracker may be behind; more are dropped, and counted."""
FINISH_SECONDS = 30.0
"""The longest time that a finished run waits for its trackers."""
FAILED_FINISH_SECONDS = 2.0
"""The longest time that a failed run waits for them: it must still report its failure."""


@dataclass(frozen=True, slots=True)
class _Step:
    values: Mapping[str, float]
    step: int


@dataclass(frozen=True, slots=True)
class _End:
    is_done: bool


class Follower:
    """One tracker in a thread of its own. `redact` removes secrets from its messages."""

    def __init__(self, name: str, open: Callable[[], Tracker], *, redact: Callable[[str], str]) -> None:
        self.name = name
        self.num_failures = self.num_dropped = 0
        self._first_failure = ""
        self._open, self._redact = open, redact
        self._waiting: queue.Queue[_Step | _End] = queue.Queue(MAX_WAITING)
        self._is_warned = False
        self._thread = threading.Thread(target=self._follow, name=f"planc-{name}", daemon=True)
        self._thread.start()

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        try:
            self._waiting.put_nowait(_Step(values, step))
        except queue.Full:
            self.num_dropped += 1

    def warning(self) -> str | None:
        """The warning about the first failure, returned once."""
        if self._is_warned or not self._first_failure:
            return None
        self._is_warned = True
        return f"warning: {self.name} failed, training continues: {self._first_failure}"

    def finish(self, *, is_done: bool) -> str | None:
        """End the tracker, or abandon it if it takes too long. Return what it missed; None for nothing."""
        seconds = FINISH_SECONDS if is_done else FAILED_FINISH_SECONDS
        try:
            self._waiting.put(_End(is_done), timeout=seconds)
            self._thread.join(seconds)
        except queue.Full:
            pass
        is_late = self._thread.is_alive()
        failures = f"{plural(self.num_failures, 'call')} failed" if self.num_failures else ""
        dropped = f"{plural(self.num_dropped, 'step')} dropped" if self.num_dropped else ""
        late = f"it did not finish within {seconds:.0f} s" if is_late else ""
        missed = ", ".join(filter(None, (failures, dropped, late)))
        return f"warning: {self.name}: {missed}" if missed else None

    def _follow(self) -> None:
        tracker = None
        while not isinstance(entry := self._waiting.get(), _End):
            tracker = tracker or self._opened()
            if tracker is not None:
                self._try(tracker.log, entry.values, step=entry.step)
            else:
                self.num_dropped += 1
        if tracker is not None:
            self._try(tracker.finish, is_done=entry.is_done)

    def _opened(self) -> Tracker | None:
        """The tracker; None if it failed before: a second try would fail again, and may take minutes."""
        if self.num_failures:
            return None
        try:
            return self._open()
        except BaseException as error:
            # W&B raises its own kinds, not all of them Exceptions; none may reach training.
            self._failed(error)
            return None

    def _try(self, call: Callable[..., None], *arguments: object, **options: object) -> None:
        try:
            call(*arguments, **options)
        except BaseException as error:
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        self.num_failures += 1
        if not self._first_failure:
            self._first_failure = self._redact(f"{type(error).__name__}: {error}".partition("\n")[0])


class Following(Observer):
    """Forwards a run's events to trackers. `say` prints a line for the user."""

    def __init__(
        self,
        openers: Mapping[str, Open],
        *,
        opening: Callable[[int], Opening],
        say: Callable[[str], None],
        redact: Callable[[str], str],
    ) -> None:
        self._openers, self._opening, self._say, self._redact = openers, opening, say, redact
        self.followers: tuple[Follower, ...] = ()

    def started(self, *, first_step: int, num_steps: int) -> None:
        opening = self._opening(first_step)
        self.followers = tuple(
            Follower(name, lambda open=open: open(opening), redact=self._redact)  # type: ignore[misc]
            for name, open in self._openers.items()
        )

    def stepped(self, metrics: StepMetrics) -> None:
        for follower in self.followers:
            follower.log(values_of(metrics), step=metrics.step)
            self._report(follower.warning())

    def evaluated(self, evaluation: Evaluation, *, step: int) -> None:
        for follower in self.followers:
            follower.log(values_of_evaluation(evaluation), step=step)
            self._report(follower.warning())

    def close(self, *, is_done: bool) -> None:
        for follower in self.followers:
            missed = follower.finish(is_done=is_done)
            self._report(follower.warning())
            self._report(missed)

    def _report(self, text: str | None) -> None:
        if text is not None:
            self._say(text)
