"""What a stream can show: its width, and whether to write colors to it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import TextIO

COLOR_CHOICES = ("auto", "always", "never")
_VARIABLES = ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE")


def terminal_width(stream: TextIO) -> int | None:
    """The columns of a terminal: `$COLUMNS`, else the terminal's own answer. None for a pipe or a file."""
    if not stream.isatty():
        return None
    columns = os.environ.get("COLUMNS", "")
    if re.fullmatch("[1-9][0-9]{0,4}", columns):
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except OSError:  # a terminal without a known size
        return None


def wants_color(stream: TextIO) -> bool:
    """Whether to color a stream: NO_COLOR, then FORCE_COLOR and CLICOLOR_FORCE, then isatty and TERM.

    https://no-color.org, https://force-color.org, https://bixense.com/clicolors
    """
    if os.environ.get("NO_COLOR"):
        return False
    if any(os.environ.get(name, "0") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


@contextlib.contextmanager
def color_choice(choice: str) -> Iterator[None]:
    """Apply `--color` until the block ends, as the variables that rich and child processes read too."""
    if choice == "auto":
        yield
        return
    before = {name: os.environ.pop(name, None) for name in _VARIABLES}
    os.environ["FORCE_COLOR" if choice == "always" else "NO_COLOR"] = "1"
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
