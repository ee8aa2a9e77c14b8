"""Formatting and fixes as edits of lines."""

from __future__ import annotations

import random
from itertools import accumulate

import pytest

from planc.lsp.findings import line_edits
from planc.source import SourceFile, Span

LINES = ("a\n", "b\n", "\n", "  c\n", "🦀é\n", "\f\n", "x\u2028y\n")


def applied(text: str, edits: list[tuple[Span, str]]) -> str:
    starts = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]
    for span, new in reversed(edits):
        start = starts[span.line - 1] + span.column - 1
        end = starts[span.end_line - 1] + span.end_column - 1
        text = text[:start] + new + text[end:]
    return text


@pytest.mark.parametrize("seed", range(200))
def test_edits_make_the_new_text(seed: int) -> None:
    draw = random.Random(seed)
    old, new = (
        "".join(draw.choices(LINES, k=draw.randrange(8))) + draw.choice(("", "", "end")) for _ in range(2)
    )
    assert applied(old, list(line_edits(SourceFile("x.plan", old), new))) == new


def test_lines_that_stay_are_not_edited() -> None:
    ((span, text),) = line_edits(SourceFile("x.plan", "a\nb\nc\n"), "a\nB\nc\n")
    assert (span, text) == (Span("x.plan", 2, 1, 3, 1), "B\n")
