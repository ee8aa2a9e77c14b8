"""A rank's reaction to signals: it acknowledges one and stops the run, or reports a lost rank."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from planc.graph.ops import InitMesh
from planc.runtime.checkpoint_format.errors import CheckpointError
from planc.runtime.checkpoint_format.layout import latest
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.process import Launch
from planc.runtime.ranks.watch import Watch
from planc.runtime.run_directory.directory import RunDirectory
from planc.runtime.stopping.notice import Notice
from planc.runtime.stopping.stop_points import StopPoints

_NAMES = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1")
# Windows, where this is imported and nothing runs, lacks two.
SIGNALS = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))
"""Signals that schedulers, torchrun and people send to stop a run."""
_AT_ONCE = (signal.SIGTERM, signal.SIGINT)
"""Signals that end the process at once when they come a second time."""
_ECHO_SECONDS = 1.0
"""A SIGTERM sent to all processes arrives twice, because torchrun forwards its own."""
_START_SECONDS = 10.0
"""The longest time until ranks that get a signal at startup meet; nothing is lost if they do not."""
_LOOK_SECONDS = 0.5
_LOST_SECONDS = 3.0
"""The longest time until the store or a file names the lost rank."""
_WORD_SECONDS = 15.0
"""The longest time until a failing process reports: it finds the lost rank and closes its trackers. torchrun
waits twice as long."""


def listen(launch: Launch, directory: RunDirectory | None) -> Listener:
    """Start to handle signals. Ignored ones, as under nohup, stay ignored.

    A thread reads them from a pipe, since the main thread runs no Python while it waits in a collective.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    listener = Listener(reader, launch, directory)
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            listener.previous[number] = signal.signal(number, listener.note)
            # A signal must not make a library's system call fail.
            signal.siginterrupt(number, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    # A forked process would write its own signals to this process's pipe.
    os.register_at_fork(after_in_child=_stop_listening)
    threading.Thread(target=listener.run, name="planc-signals", daemon=True).start()
    return listener


def silent(launch: Launch, directory: RunDirectory | None) -> Listener:
    """A listener that leaves all signals to the program that started the run."""
    return Listener(-1, launch, directory)


def _stop_listening() -> None:
    signal.set_wakeup_fd(-1)
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


class Listener:
    """Handles this process's signals. The run sets its directory, watch and plan hash when it knows them."""

    def __init__(self, reader: int, launch: Launch, directory: RunDirectory | None) -> None:
        self.reader, self.launch, self.directory = reader, launch, directory
        self.notice = Notice()
        self.plan_hash = ""
        self.watch: Watch | None = None
        self.stands_by = False
        """Whether this rank is a spare, which waits for a place in the mesh."""
        self.report_lost: Callable[[str], None] | None = None
        self.previous: dict[int, Any] = {}
        """The handlers of signals before this listener's, by number."""
        self._is_closed = False
        self._signaled_at: float | None = None
        self._pressed_at: float | None = None
        """When the first of the `_AT_ONCE` signals came."""
        self._was_lost = False

    def keep_watch(
        self,
        watch: Watch,
        points: StopPoints,
        init: InitMesh,
        *,
        report: Callable[[RunError], None],
        has_nccl: bool,
    ) -> None:
        """Publish this rank's progress, and report a lost rank after a signal or a timeout.

        From now on this rank also learns of signals on other ranks.
        """

        def report_lost(lost: str) -> None:
            text = "another rank exited or stopped responding, and this rank can't continue without it"
            record = {"lost": lost}
            report(RunError(text, code=ExitCode.COMMUNICATION, help=lost, is_shared=False, record=record))

        points.start(on_first_request=self.acknowledge if self.launch.rank else lambda name: None)
        watch.start(timeout_seconds=init.timeout_seconds, overdue=report_lost if has_nccl else None)
        self.report_lost, self.watch = report_lost, watch

    def note(self, number: int, frame: FrameType | None) -> None:
        """The signal handler, in the main thread: notify the run. The listener's thread does the rest."""
        self.notice.request(signal.Signals(number).name)

    def close(self) -> None:
        """Leave signals to the handlers that they had before."""
        if self.previous:
            signal.set_wakeup_fd(-1)
        for number, handler in self.previous.items():
            signal.signal(number, handler)
        self._is_closed = True

    def run(self) -> None:
        """Handle signals until the process or the run ends."""
        while not self._is_closed:
            for number in self._signals():
                self._handle(number)
            signaled_at = self._signaled_at or self.notice.requested_at
            if signaled_at is not None:
                self._look(signaled_at=signaled_at)

    def _signals(self) -> list[signal.Signals]:
        """The next signals; none after a while, so the caller can check on the other ranks."""
        ready, _, _ = select.select([self.reader], [], [], _LOOK_SECONDS)
        return [signal.Signals(one) for one in os.read(self.reader, 64) if one in SIGNALS] if ready else []

    def _handle(self, number: signal.Signals) -> None:
        notice, now = self.notice, time.monotonic()
        if notice.is_over:
            # A report is being written. A run that ended well may take its time.
            if number in _AT_ONCE and notice.has_failed:
                self._await_word()
            return
        if self.stands_by and number not in _AT_ONCE:
            # The training ranks save; torchrun would end a node's ranks early if a spare exited.
            return
        if number in _AT_ONCE and self._pressed_at is not None:
            if number != signal.SIGTERM or now - self._pressed_at > _ECHO_SECONDS:
                self._end_at_once(number)
            return
        if number in _AT_ONCE:
            self._pressed_at = now
        if self._signaled_at is not None:
            return
        self._signaled_at = now
        notice.request(number.name)
        if notice.step is None and self.watch is None:
            self._end_untrained()
        if self.launch.rank == 0:
            self.acknowledge(number.name)

    def acknowledge(self, name: str) -> None:
        """Print that a signal was received, since the run may take a while to stop."""
        again = "; send it again to exit at once" if name in {number.name for number in _AT_ONCE} else ""
        does = "saving, then exiting" if self.notice.has_trained and self.notice.saves else "exiting"
        text = f"{name} received on rank {self.launch.rank}: {does}{again}"
        print(f"planc: {text}", file=sys.stderr, flush=True)

    def _look(self, *, signaled_at: float) -> None:
        """End the process if the run can't reach a point where it could stop cleanly."""
        watch, notice = self.watch, self.notice
        if notice.is_agreed or notice.is_over:
            return
        if not notice.has_trained and time.monotonic() - signaled_at > _START_SECONDS:
            self._end_untrained()
        if watch is None:
            return
        if watch.is_claimed:
            self._await_word()
        lost = _within(_LOST_SECONDS, watch.known_lost)
        # A rank may be seen between an agreement to continue and one to stop, so look twice.
        if lost and self._was_lost and watch.claim():
            watch.give_up()
            if self.report_lost is not None:
                _within(_LOST_SECONDS, lambda: self.report_lost and self.report_lost(lost))
            _leave(ExitCode.TERMINATED)
        self._was_lost = bool(lost)

    def _await_word(self) -> NoReturn:
        """Wait for another thread, which reports the error and ends the process."""
        time.sleep(_WORD_SECONDS)
        _leave(ExitCode.TERMINATED)

    def _end_untrained(self) -> NoReturn:
        """End the process before the first step is complete: there is nothing to save."""
        self._give_up()
        signal_name = self.notice.signal_name
        self._write("preempted", ExitCode.PREEMPTED, step=self._saved_step(), signal=signal_name or None)
        self._tell(f"stopped by {signal_name or 'a signal on another rank'} before the end of the first step")
        _leave(ExitCode.PREEMPTED)

    def _end_at_once(self, number: signal.Signals) -> NoReturn:
        """End the process at once; steps since the last save are lost."""
        interrupted = number == signal.SIGINT
        code = ExitCode.INTERRUPTED if interrupted else ExitCode.TERMINATED
        word = "interrupted" if interrupted else f"second {number.name}"
        self._give_up()
        step = self.notice.step or 0
        self._write("failed", code, error=word, step=step)
        self._tell(f"{word} after step {step}, which is not saved (plan_hash {self.plan_hash[:12]})")
        _leave(code)

    def _saved_step(self) -> int:
        if self.directory is None:
            return 0
        with contextlib.suppress(CheckpointError):
            return latest(self.directory.path / "checkpoints") or 0
        return 0

    def _give_up(self) -> None:
        if self.watch is not None:
            _within(_LOST_SECONDS, self.watch.give_up)

    def _write(self, state: str, code: ExitCode, **details: object) -> None:
        if self.launch.rank == 0 and self.directory is not None:
            # It may be another run's directory.
            with contextlib.suppress(RunError):
                self.directory.claim()
                self.directory.write_status(state, code=code, **details, plan_hash=self.plan_hash or None)

    def _tell(self, text: str) -> None:
        if self.launch.rank == 0:
            print(f"planc: {text}", file=sys.stderr)


def _within(seconds: float, function: Callable[[], str | None]) -> str | None:
    """A function's result if it returns in time; files and the store may not respond."""
    found: list[str | None] = []
    thread = threading.Thread(target=lambda: found.append(function()), daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else None


def _leave(code: ExitCode) -> NoReturn:
    """End the process without the interpreter's shutdown: the main thread may be waiting in a collective."""
    os._exit(code)
