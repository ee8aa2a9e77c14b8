"""Questions at a terminal, asked on stderr: stdout stays a command's own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

from planc.cli.support.exits import UsageError

_Value = TypeVar("_Value")


def can_ask() -> bool:
    """Whether a person can see a question and answer it."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask(question: str, read: Callable[[str], _Value], *, default: str) -> _Value:
    """Ask until `read` takes the answer; an empty one is the default.

    `read` raises ValueError with the reason for an answer that makes no sense. UsageError at the input's end.
    """
    while True:
        sys.stderr.write(f"{question} [{default}] ")
        sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            sys.stderr.write("\n")
            raise UsageError("the input ended before all questions were answered")
        try:
            return read(line.strip() or default)
        except ValueError as error:
            sys.stderr.write(f"  {error}\n")
