"""Text with a name, and positions in it: the currency of every diagnostic."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from planc.record import record


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A half-open range of one source: lines and columns count characters from 1.

    `end_column` is the column after the last character. A span carries positions, not text: a
    graph can point at its plan without holding it.
    """

    file: str
    line: int
    column: int
    end_line: int
    end_column: int

    @property
    def is_start(self) -> bool:
        """Whether this is the empty span at the start: a finding there is about the whole file."""
        return (self.line, self.column, self.end_line, self.end_column) == (1, 1, 1, 1)

    def to(self, other: Span) -> Span:
        """The span from the start of this one to the end of `other`."""
        return Span(self.file, self.line, self.column, other.end_line, other.end_column)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


ROOT_MARKS = (".git", "planc.toml")
"""The files or folders of which one makes a folder the root of a plan's tree."""
NOWHERE = Span("", 1, 1, 1, 1)
"""The place of what no file has."""


@record
class SourceFile:
    """A named text. Command-line settings are sources too (`--set`): errors can point into them."""

    name: str
    text: str

    @property
    def lines(self) -> tuple[str, ...]:
        return _lines(self.text)

    def text_of(self, span: Span) -> str:
        """Return the text of a span of this source."""
        *others, last = self.lines[span.line - 1 : span.end_line]
        return "\n".join((*others, last[: span.end_column - 1]))[span.column - 1 :]

    def whole(self) -> Span:
        lines = self.lines
        return Span(self.name, 1, 1, len(lines), len(lines[-1]) + 1)

    def start(self) -> Span:
        return Span(self.name, 1, 1, 1, 1)


@functools.lru_cache(maxsize=8)
def _lines(text: str) -> tuple[str, ...]:
    """A thousand findings on a text ask for its lines a thousand times."""
    return tuple(text.split("\n"))


def tree_root(base: Path) -> Path:
    """The nearest folder with `.git` or `planc.toml`, else `base`: a plan's files are in it or below."""
    folder = base.resolve()
    marked = (one for one in (folder, *folder.parents) if any((one / mark).exists() for mark in ROOT_MARKS))
    return next(marked, folder)
