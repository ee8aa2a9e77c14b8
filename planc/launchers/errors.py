"""The error of an impossible launch."""

from __future__ import annotations


class LaunchError(ValueError):
    """The plan can't be launched as requested; `help` is what to change."""

    def __init__(self, message: str, *, help: str) -> None:
        super().__init__(message)
        self.message = message
        self.help = help
