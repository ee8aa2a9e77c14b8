"""Errors that end a run, each with an exit code, a place in the plan, and a help."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from planc.outgoing import message_text
from planc.source import Span

STOPS = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""Exceptions that end a program or a generator. Any other BaseException is an error, such as a panic in Rust:
where all errors are caught, `except STOPS: raise` comes before `except BaseException`."""


class ExitCode(IntEnum):
    """Exit codes of a run, also in `status.json`, since torchrun returns 1 for every failure."""

    DONE = 0
    INTERNAL = 1
    INPUT = 2
    STORAGE = 4
    NUMERICS = 5
    COMMUNICATION = 6
    CORRUPT_CHECKPOINT = 7
    MEMORY = 8
    """A rank or its device ran out of memory."""
    PREEMPTED = 75
    """Stopped by a signal after saving: EX_TEMPFAIL, which schedulers read as "start it again"."""
    INTERRUPTED = 130
    """Ended by a second Ctrl-C, as a shell reports it."""
    TERMINATED = 143
    """Ended by a second SIGTERM, or by one after the loss of another rank, as a shell reports it."""


class RunError(Exception):
    """A run can't continue, for a reason that a user can act on.

    `is_shared` is true if every rank fails in the same way, so only rank 0 reports it. `record` goes into
    status.json, next to the message.
    """

    def __init__(
        self,
        message: str,
        *,
        code: ExitCode = ExitCode.INPUT,
        help: str | None = None,
        span: Span | None = None,
        is_shared: bool = True,
        record: Mapping[str, Any] | None = None,
    ) -> None:
        self.message = message_text(message)
        super().__init__(self.message)
        self.code = code
        self.help = None if help is None else message_text(help)
        self.span = span
        self.is_shared = is_shared
        self.record = record or {}


class OpFailure(RunError):
    """An op failed with an unexpected error: names the op, its line of the plan, and the rank."""
