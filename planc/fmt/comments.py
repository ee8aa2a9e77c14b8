"""Comments on their way to their place in a formatted plan: the syntax tree does not hold them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from planc.source import Span
from planc.syntax.comments import Comment

Position: TypeAlias = tuple[int, int]
"""Line and column, from 1."""


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
            if start(comment.span) >= position:
                return
            self._num_taken += 1
            yield comment

    def on_line(self, line: int, *, before: Position) -> Comment | None:
        """Take the next comment if it is on this line, before a position: it belongs to what ends there."""
        if self._num_taken < len(self._comments):
            comment = self._comments[self._num_taken]
            if comment.span.line == line and start(comment.span) < before:
                self._num_taken += 1
                return comment
        return None
