"""Prose of a finding in lines that fit a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator

from planc.diagnostics.visible import num_cells

# Code in backticks is one word, to keep what a reader copies on one line.
_WORD = re.compile(r"(?:`[^`]*`|[^\s`]|`)+")


def wrap(text: str, *, cells: int, tail: str = "") -> tuple[str, ...]:
    """The text in lines of at most `cells`, broken between words; a longer word has a line of its own.

    `tail` ends the last line, two spaces before it, or has a line of its own.
    """
    is_short = num_cells(text) <= cells
    lines = [text] if is_short else list(_filled(_words(text, cells=cells), cells=cells))
    if not tail:
        return tuple(lines)
    if num_cells(lines[-1]) + 2 + num_cells(tail) <= cells:
        lines[-1] = f"{lines[-1]}  {tail}"
    else:
        lines.extend(wrap(tail, cells=cells))
    return tuple(lines)


def _words(text: str, *, cells: int) -> Iterator[str]:
    """What stands together on a line. Code that no line could hold breaks at its own spaces."""
    for match in _WORD.finditer(text):
        word = match.group()
        yield from (word,) if num_cells(word) <= cells else word.split()


def _filled(words: Iterator[str], *, cells: int) -> Iterator[str]:
    line = ""
    for word in words:
        if line and num_cells(line) + 1 + num_cells(word) > cells:
            yield line
            line = word
        else:
            line = f"{line} {word}" if line else word
    yield line
