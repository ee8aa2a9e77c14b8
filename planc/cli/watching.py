"""What a rank says when it is told to end: which other rank ended first, and where that one was."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

from planc.graph.ops import InitMesh
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.watch import Watch

_TOLD = 128 + signal.SIGTERM
"""The exit code of a process that SIGTERM ended, as a shell reports it."""
_WORD_SECONDS = 3.0
"""How long a process may take to say what it was about to say."""


def keep_watch(watch: Watch, init: InitMesh, *, report: Callable[[RunError], None], has_nccl: bool) -> None:
    """Lets this rank tell where it is, and which rank it lost when it is told to end or waits too long."""

    def say(lost: str) -> None:
        text = "another rank ended or stopped answering, and this one cannot go on without it"
        report(RunError(text, code=ExitCode.COMMUNICATION, help=lost, is_shared=False))

    watch.start(timeout_seconds=init.timeout_seconds, overdue=say if has_nccl else None)
    _report_termination(watch, say)


def _report_termination(watch: Watch, say: Callable[[str], None]) -> None:
    """Lets this process say what it knows of lost ranks, by `say`, before SIGTERM ends it.

    torchrun sends it as soon as a rank ends, most often while this one waits inside a collective. No Python
    runs in the main thread then, so that the signal is read from a pipe by a thread of its own.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.signal(signal.SIGTERM, _leave_to_thread)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_wait, args=(reader, watch, say), name="planc-sigterm", daemon=True).start()


def _leave_to_thread(number: int, frame: FrameType | None) -> None:
    """A handler is needed for the pipe to be written."""


def _wait(reader: int, watch: Watch, say: Callable[[str], None]) -> None:
    while signal.SIGTERM not in os.read(reader, 64):
        pass
    # What is known lies in files, or in a store that may no longer answer.
    speaker = threading.Thread(target=_say, args=(watch, say), daemon=True)
    speaker.start()
    speaker.join(_WORD_SECONDS)
    os._exit(_TOLD)


def _say(watch: Watch, say: Callable[[str], None]) -> None:
    if not watch.claim():
        # Another thread has begun to say why, and ends the process when it has.
        time.sleep(_WORD_SECONDS)
    elif lost := watch.terminated():
        say(lost)
