"""The comments of a plan, which the parser drops."""

from __future__ import annotations

import re

from planc.record import record
from planc.source import SourceFile, Span

# Strings come first, because a `#` in one does not start a comment. A string must end on its line.
_STRING_OR_COMMENT = re.compile(r'"[^"\n]*"|#[^\n]*')


@record
class Comment:
    """`text` starts with `#` and has no space at its end. `is_alone` when the line has nothing else."""

    text: str
    span: Span
    is_alone: bool


def comments(source: SourceFile) -> tuple[Comment, ...]:
    """Every comment in the order of the text, whether or not the rest of it parses."""
    found: list[Comment] = []
    for number, line in enumerate(source.lines, 1):
        for match in _STRING_OR_COMMENT.finditer(line):
            if match.group().startswith("#"):
                text = match.group().rstrip()
                start = match.start() + 1
                span = Span(source.name, number, start, number, start + len(text))
                found.append(Comment(text, span, not line[: match.start()].strip()))
    return tuple(found)
