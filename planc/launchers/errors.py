"""The error of a launch that cannot be written."""

from __future__ import annotations


class LaunchError(ValueError):
    """Why no text can start the plan as asked; `help` says what to change."""

    def __init__(self, message: str, *, help: str) -> None:
        super().__init__(message)
        self.message = message
        self.help = help
