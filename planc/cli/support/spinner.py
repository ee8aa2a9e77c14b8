"""A line that moves while a command waits, on a terminal."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TextIO


def can_animate(stream: TextIO) -> bool:
    """Whether a stream can redraw a line: not a pipe, nor in CI, whose terminals record all output."""
    return stream.isatty() and not os.environ.get("CI") and os.environ.get("TERM") != "dumb"


@contextlib.contextmanager
def spinner(text: str, *, stream: TextIO) -> Iterator[Callable[[str], None]]:
    """Show a text with a spinner until the block ends, and then clear the line. Nothing in a pipe.

    Yields a function that changes the text.
    """
    if not can_animate(stream):
        yield lambda text: None
        return
    # Slow to import, and not needed for a pipe.
    from rich.console import Console
    from rich.markup import escape

    console = Console(file=stream, highlight=False)
    turns = "line" if console.options.ascii_only else "dots"
    with console.status(escape(text), spinner=turns) as status:
        yield lambda text: status.update(escape(text))
