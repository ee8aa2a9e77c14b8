"""What a rank does when it is told to end: it says so, and the run ends; or which other rank was lost."""

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
from typing import NoReturn, TextIO

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
"""What schedulers, torchrun and people send to a run that is to end."""
_AT_ONCE = (signal.SIGTERM, signal.SIGINT)
"""Of these a second one is not waited for."""
_ECHO_SECONDS = 1.0
"""A SIGTERM sent to all processes comes twice: torchrun passes on its own."""
_START_SECONDS = 10.0
"""How long ranks that are told to end as they start may take to meet; nothing is lost if they do not."""
_LOOK_SECONDS = 0.5
_LOST_SECONDS = 3.0
"""How long a store or a file may take to tell which rank was lost."""
_WORD_SECONDS = 15.0
"""How long a process may take to say what it was about to say: it finds out which rank was lost, and closes
its trackers. torchrun waits twice as long."""


def listen(launch: Launch, directory: RunDirectory | None) -> Listener:
    """Begins to hear signals. Those that were ignored, as under nohup, stay so.

    They are read from a pipe by a thread of its own, since no Python runs in a main thread that waits inside
    a collective.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    listener = Listener(reader, launch, directory)
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, listener.note)
            # No call of a library is to fail because of one.
            signal.siginterrupt(number, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    # A forked process would tell this one of the signals that it gets itself.
    os.register_at_fork(after_in_child=_hear_no_more)
    threading.Thread(target=listener.run, name="planc-signals", daemon=True).start()
    return listener


def _hear_no_more() -> None:
    signal.set_wakeup_fd(-1)
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


class Listener:
    """Hears what tells this process to end. The run fills in what it is to know: folder, watch and hash."""

    def __init__(self, reader: int, launch: Launch, directory: RunDirectory | None) -> None:
        self.reader, self.launch, self.directory = reader, launch, directory
        self.notice = Notice()
        self.plan_hash = ""
        self.claimed: TextIO | None = None
        """What makes the folder this run's."""
        self.watch: Watch | None = None
        self.stands_by = False
        """This rank has no place in the mesh, and waits for one."""
        self.say: Callable[[str], None] | None = None
        self._heard_at: float | None = None
        self._pressed_at: float | None = None
        """When the first of the signals came that are not waited for twice."""
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
        """Lets this rank tell where it is, and which it lost when it is told to end or waits too long.

        From now on it also learns of it if another rank is told to end.
        """

        def say(lost: str) -> None:
            text = "another rank ended or stopped answering, and this one cannot go on without it"
            report(RunError(text, code=ExitCode.COMMUNICATION, help=lost, is_shared=False))

        points.start(on_first_request=self.acknowledge if self.launch.rank else lambda name: None)
        watch.start(timeout_seconds=init.timeout_seconds, overdue=say if has_nccl else None)
        self.say, self.watch = say, watch

    def note(self, number: int, frame: FrameType | None) -> None:
        """The handler, in the main thread: tells the run. All else is for the listener's own thread."""
        self.notice.request(signal.Signals(number).name)

    def run(self) -> None:
        """Hears until the process ends."""
        while True:
            for number in self._signals():
                self._hear(number)
            told_at = self._heard_at or self.notice.requested_at
            if told_at is not None:
                self._look(told_at=told_at)

    def _signals(self) -> list[signal.Signals]:
        """The next ones; none after a while: another rank may be told to end, or may be lost."""
        ready, _, _ = select.select([self.reader], [], [], _LOOK_SECONDS)
        return [signal.Signals(one) for one in os.read(self.reader, 64) if one in SIGNALS] if ready else []

    def _hear(self, number: signal.Signals) -> None:
        notice, now = self.notice, time.monotonic()
        if notice.is_over:
            # What there is to say is being said. A run that ended well is not hurried.
            if number in _AT_ONCE and notice.has_failed:
                self._await_word()
            return
        if self.stands_by and number not in _AT_ONCE:
            # The ranks that train save for it; a node that loses a rank would end them before they have.
            return
        if number in _AT_ONCE and self._pressed_at is not None:
            if number != signal.SIGTERM or now - self._pressed_at > _ECHO_SECONDS:
                self._end_at_once(number)
            return
        if number in _AT_ONCE:
            self._pressed_at = now
        if self._heard_at is not None:
            return
        self._heard_at = now
        notice.request(number.name)
        if notice.step is None and self.watch is None:
            self._end_untrained()
        if self.launch.rank == 0:
            self.acknowledge(number.name)

    def acknowledge(self, name: str) -> None:
        """Says that a signal was heard: what is under way may take a while to leave."""
        again = "; once more to end at once" if name in {number.name for number in _AT_ONCE} else ""
        text = f"{name} received on rank {self.launch.rank}: saves what is new and ends{again}"
        print(f"planc: {text}", file=sys.stderr, flush=True)

    def _look(self, *, told_at: float) -> None:
        """Ends the process if the run cannot come to a place where it could end well."""
        watch, notice = self.watch, self.notice
        if notice.is_agreed or notice.is_over:
            return
        if not notice.has_trained and time.monotonic() - told_at > _START_SECONDS:
            self._end_untrained()
        if watch is None:
            return
        if watch.is_claimed:
            self._await_word()
        lost = _within(_LOST_SECONDS, watch.known_lost)
        # A rank that is told to go on and to end, in this order, may be seen in between.
        if lost and self._was_lost and watch.claim():
            watch.give_up()
            if self.say is not None:
                _within(_LOST_SECONDS, lambda: self.say and self.say(lost))
            _leave(ExitCode.TERMINATED)
        self._was_lost = bool(lost)

    def _await_word(self) -> NoReturn:
        """Another thread says why this rank ends, and ends the process when it has."""
        time.sleep(_WORD_SECONDS)
        _leave(ExitCode.TERMINATED)

    def _end_untrained(self) -> NoReturn:
        """Before the end of the first step there is nothing to save, and no step to agree upon."""
        self._give_up()
        heard = self.notice.signal_name
        self._write("preempted", ExitCode.PREEMPTED, step=self._saved_step(), signal=heard or None)
        self._tell(f"{heard or 'told to end'} before the end of the first step: nothing was trained")
        _leave(ExitCode.PREEMPTED)

    def _end_at_once(self, number: signal.Signals) -> NoReturn:
        """What was trained since the last save is lost."""
        interrupted = number == signal.SIGINT
        code = ExitCode.INTERRUPTED if interrupted else ExitCode.TERMINATED
        word = "interrupted" if interrupted else "told to end again"
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
        if self.launch.rank == 0 and self.directory is not None and self.directory.path.is_dir():
            # The main thread may be writing the same file, a disk may be full, the folder another run's.
            with contextlib.suppress(OSError, RunError):
                claimed = self.claimed or self.directory.claim()
                self.directory.write_status(state, code=code, **details, plan_hash=self.plan_hash or None)
                del claimed

    def _tell(self, text: str) -> None:
        if self.launch.rank == 0:
            print(f"planc: {text}", file=sys.stderr)


def _within(seconds: float, function: Callable[[], str | None]) -> str | None:
    """What a function returns in time. What is known lies in files, or in a store that may not answer."""
    found: list[str | None] = []
    thread = threading.Thread(target=lambda: found.append(function()), daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else None


def _leave(code: ExitCode) -> NoReturn:
    """Ends the process past the interpreter's own end: the main thread may be waiting in a collective."""
    os._exit(code)
