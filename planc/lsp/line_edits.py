"""The lines that a new text changes, as edits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import SequenceMatcher

from planc.source import SourceFile, Span

_LINE = re.compile(r"[^\n]*\n|[^\n]+")


def line_edits(source: SourceFile, text: str) -> Iterator[tuple[Span, str]]:
    """Spans of `source` with their replacements, which together make it `text`. They do not overlap."""
    old, new = _LINE.findall(source.text), _LINE.findall(text)
    end = source.whole()

    def start_of(index: int) -> tuple[int, int]:
        return (index + 1, 1) if index < len(old) else (end.end_line, end.end_column)

    for tag, first, last, new_first, new_last in SequenceMatcher(None, old, new).get_opcodes():
        if tag != "equal":
            yield Span(source.name, *start_of(first), *start_of(last)), "".join(new[new_first:new_last])
