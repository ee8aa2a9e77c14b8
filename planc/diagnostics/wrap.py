"""Text of a finding, safe to show and in lines that fit a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from unicodedata import combining, east_asian_width

from planc.record import record


def visible(text: str) -> str:
    """The text with each character that prints nothing, or steers a terminal, replaced by U+FFFD."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def encodable(text: str, encoding: str) -> str:
    """The text with `?` for each character that the encoding lacks, which keeps the columns."""
    return text.encode(encoding, "replace").decode(encoding)


def num_cells(text: str) -> int:
    """Columns of a terminal that the text takes: two for a wide character, none for a combining one."""
    if text.isascii():
        return len(text)
    return sum(
        0 if combining(character) else 2 if east_asian_width(character) in "WF" else 1 for character in text
    )


_CUT = "..."


@record
class Window:
    """Characters [start, end) of `line`, three dots where something is left out."""

    line: str
    start: int
    end: int

    @property
    def text(self) -> str:
        before = _CUT if self.start > 0 else ""
        after = _CUT if self.end < len(self.line) else ""
        return f"{before}{self.line[self.start : self.end]}{after}"

    def has(self, first: int) -> bool:
        """Whether the character at `first` is shown; the place after the last one counts as shown."""
        return self.start <= first < self.end or first >= len(self.line) == self.end

    def marks(self, first: int, end: int, mark: str) -> tuple[str, str]:
        """The space and the marks under characters [first, end), of which the window has the first."""
        shown = min(first, len(self.line))
        indent = (len(_CUT) if self.start > 0 else 0) + num_cells(self.line[self.start : shown])
        return " " * indent, mark * max(1, num_cells(self.line[shown : max(shown, min(end, self.end))]))


def window(line: str, *, first: int, max_cells: int) -> Window:
    """The whole line where it fits, else a part with the character at `first`, most of it after that one."""
    if num_cells(line) <= max_cells:
        return Window(line, 0, len(line))
    budget = max(1, max_cells - 2 * len(_CUT))
    first = min(first, len(line))
    start = _walk_back(line, first, budget // 3)
    end = start
    cells = 0
    while end < len(line) and (cells := cells + num_cells(line[end])) <= budget:
        end += 1
    if end == len(line):  # near the end of the line there is room before instead
        start = _walk_back(line, end, budget)
    return Window(line, start, end)


def _walk_back(line: str, place: int, max_cells: int) -> int:
    """Count the characters before `place` in a window of `max_cells` cells that ends there."""
    cells = 0
    while place > 0 and (cells := cells + num_cells(line[place - 1])) <= max_cells:
        place -= 1
    return place


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
    """Yield parts that stay together on a line. Code that no line could hold breaks at its own spaces."""
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
