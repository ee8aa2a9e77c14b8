"""Exit codes, and the error that asks for one."""

from __future__ import annotations

CLEAN = 0
FINDINGS = 1
"""A plan has errors, or `diff --exit-code` found a difference."""
COULD_NOT_RUN = 2
"""Wrong usage, an unreadable file, a bug."""
READER_GONE = 1
"""Whatever read stdout stopped reading."""
INTERRUPTED = 130


class UsageError(ValueError):
    """What keeps a command from running, for the user to put right. `main` prints it and exits with 2."""
