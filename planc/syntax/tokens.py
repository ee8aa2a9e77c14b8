"""The tokens of a text that may not parse, line by line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from planc.record import record

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
    """Where a `/*` ends: after its `*/`, or with its line where there is none."""
    if is_closed:
        return text.index("*/", start + 2) + 2
    end = text.find("\n", start)
    return end if end >= 0 else len(text)
