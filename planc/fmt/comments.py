"""The comments of a plan, which its syntax tree does not hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from planc.source import Span

Position: TypeAlias = tuple[int, int]
"""Line and column, from 1."""

# A `#` in a string starts no comment. As STRING and COMMENT in the grammar.
_STRING_OR_COMMENT = re.compile(r'"[^"\n]*"|#[^\n]*')


@dataclass(frozen=True, slots=True)
class Comment:
    """`text` starts with its `#` and has no blanks at its end."""

    text: str
    line: int
    column: int

    @property
    def start(self) -> Position:
        return self.line, self.column


def comments_of(text: str) -> tuple[Comment, ...]:
    """All comments of a text that parses, in order."""
    return tuple(
        Comment(match.group().rstrip(), number, match.start() + 1)
        for number, line in enumerate(text.split("\n"), start=1)
        for match in _STRING_OR_COMMENT.finditer(line)
        if match.group().startswith("#")
    )


def start(span: Span) -> Position:
    return span.line, span.column


def end(span: Span) -> Position:
    return span.end_line, span.end_column


class PendingComments:
    """Comments not yet placed. Each is taken once and in order: none moves past another."""

    def __init__(self, comments: tuple[Comment, ...]) -> None:
        self._comments = comments
        self._num_taken = 0

    def before(self, position: Position) -> Iterator[Comment]:
        """Takes those that start before a position."""
        while self._num_taken < len(self._comments):
            comment = self._comments[self._num_taken]
            if comment.start >= position:
                return
            self._num_taken += 1
            yield comment

    def on_line(self, line: int, *, before: Position) -> Comment | None:
        """Takes the next one if it stands on this line, before a position: the remark on what ends there."""
        if self._num_taken < len(self._comments):
            comment = self._comments[self._num_taken]
            if comment.line == line and comment.start < before:
                self._num_taken += 1
                return comment
        return None
