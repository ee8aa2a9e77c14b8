"""Exit codes, and the error for wrong usage."""

from __future__ import annotations

from planc.outgoing import message_text

CLEAN = 0
FINDINGS = 1
"""A plan has errors, or `diff --exit-code` found a difference."""
COULD_NOT_RUN = 2
"""Wrong usage, an unreadable file, a bug."""
READER_GONE = 141
"""The reader of the output closed it: 128 + SIGPIPE, as a shell reports it of other commands."""
INTERRUPTED = 130


class UsageError(ValueError):
    """An error that the user can correct. `main` prints it and exits with 2."""

    def __init__(self, message: str) -> None:
        super().__init__(message_text(message))
