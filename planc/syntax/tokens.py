"""The tokens and the comments of a text that may not parse."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from planc.record import record
from planc.source import SourceFile, Span

# Strings come first, because brackets and `#` in them do not count. Quotes of other languages make strings
# too: their intent is plain. `//` starts a comment after a space only: paths hold it.
_TOKEN = re.compile(
    r"""(?P<string>"[^"\n]*"|'[^'"\n]*'|`[^`"\n]*`)"""
    r"""|(?P<open>"[^\n]*)"""
    r"""|(?P<comment>\#[^\n]*)"""
    r"""|(?P<foreign>(?<!\S)//[^\n]*|/\*)"""
    r"""|(?P<bracket>[{}()\[\]])"""
    r"""|(?P<word>[A-Za-z_][A-Za-z0-9_]*)"""
    r"""|(?P<number>-?[0-9][\w.]*)"""
    r"""|(?P<newline>\n)"""
    r"""|(?P<sign>->|=>|:=|[=!<>]=|[^\s])"""
)


class Token(NamedTuple):
    """`kind` is the name of a group above; `open` is a string without its end, with the rest of the line."""

    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


@record
class Line:
    """A line that holds more than space and comments. `indent` counts characters."""

    number: int
    indent: int
    tokens: tuple[Token, ...]


def lines(text: str) -> Iterator[Line]:
    """The lines in order; a comment of C's kind that spans several lines belongs to its first one."""
    number, start, line_number, line_start = 1, 0, 1, 0
    tokens: list[Token] = []
    for token in _tokens(text):
        if token.kind != "newline":
            if not tokens:
                line_number, line_start = number, start
            tokens.append(token)
            number += token.text.count("\n")
            continue
        if tokens:
            yield Line(line_number, tokens[0].start - line_start, tuple(tokens))
            tokens = []
        number, start = number + 1, token.end
    if tokens:
        yield Line(line_number, tokens[0].start - line_start, tuple(tokens))


def _tokens(text: str) -> Iterator[Token]:
    """All tokens but comments."""
    last_close = text.rfind("*/")
    position = 0
    while match := _TOKEN.search(text, position):
        kind, start, position = match.lastgroup or "", match.start(), match.end()
        if match.group() == "/*":
            position = _comment_end(text, start, is_closed=start + 2 <= last_close)
        if kind != "comment":
            yield Token(kind, text[start:position], start)


def _comment_end(text: str, start: int, *, is_closed: bool) -> int:
    """Return where a `/*` ends: after its `*/`, or with its line if there is none."""
    if is_closed:
        return text.index("*/", start + 2) + 2
    end = text.find("\n", start)
    return end if end >= 0 else len(text)


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
    comments: list[Comment] = []
    for number, line in enumerate(source.lines, 1):
        for match in _STRING_OR_COMMENT.finditer(line):
            if match.group().startswith("#"):
                text = match.group().rstrip()
                start = match.start() + 1
                span = Span(source.name, number, start, number, start + len(text))
                comments.append(Comment(text, span, not line[: match.start()].strip()))
    return tuple(comments)
