"""How findings look: the caret stands under what is meant, and no text steers the terminal."""

from __future__ import annotations

import pytest

from planc.diagnostics import Label
from planc.diagnostics.human import HumanRenderer
from planc.diagnostics.machine import render_concise
from planc.diagnostics.suggest import closest
from planc.source import SourceFile, Span
from planc.syntax.codes import UNEXPECTED_TOKEN


def rendered(text: str, *, column: int, length: int = 1, label: str = "here") -> list[str]:
    """The lines of a finding on the only line of a text."""
    span = Span("x.plan", 1, column, 1, column + length)
    return (
        HumanRenderer({"x.plan": SourceFile("x.plan", text)})
        .render([UNEXPECTED_TOKEN.at(span, label)])
        .split("\n")
    )


def test_the_caret_stands_under_the_span() -> None:
    assert rendered("abc def", column=5, length=3)[3:5] == ["1 | abc def", "  |     ^^^ here"]


def test_wide_and_combining_characters_move_the_caret_by_what_they_take() -> None:
    assert rendered('"数a\u0308" x', column=7)[3:5] == ['1 | "数a\u0308" x', "  |       ^ here"]


def test_a_tab_takes_one_cell() -> None:
    assert rendered("\tx", column=2)[3:5] == ["1 |  x", "  |  ^ here"]


@pytest.mark.parametrize("column", [1, 150, 201, 9_000, 100_000])
def test_a_long_line_is_cut_around_the_span(column: int) -> None:
    text = "." * (column - 1) + "X" + "." * (100_000 - column)
    line, marks = rendered(text, column=column)[3:5]
    assert line[marks.index("^")] == "X"
    assert len(line) < 250


@pytest.mark.parametrize("character", ["\x1b", "\x9b", "\u202e", "\ud800", "\0", "\r"])
def test_nothing_in_a_text_reaches_the_terminal_unseen(character: str) -> None:
    for shown in (
        "\n".join(rendered(f"a{character}b", column=1, label=f"c{character}d")),
        render_concise([UNEXPECTED_TOKEN.at(Span(f"x{character}.plan", 1, 1, 1, 2), f"c{character}d")]),
    ):
        assert character not in shown
        assert "\ufffd" in shown


def test_a_label_elsewhere_is_shown_under_its_own_file() -> None:
    first, second = (Span(name, 1, 1, 1, 2) for name in ("x.plan", "--set"))
    sources = {name: SourceFile(name, text) for name, text in (("x.plan", "abc"), ("--set", "def"))}
    shown = HumanRenderer(sources).render(
        [UNEXPECTED_TOKEN.at(first, "one", secondary=(Label(second, "two"),))]
    )
    assert " --> x.plan:1:1" in shown
    assert " ::: --set:1:1\n  |\n1 | def\n  | - two" in shown


@pytest.mark.parametrize(
    ("name", "candidates", "found"),
    [
        ("dp_shrad", ("dp_shard", "dp_replicate"), "dp_shard"),
        ("GIB", ("GiB", "GB"), "GiB"),
        ("gb", ("GiB", "GB"), "GB"),
        ("m", ("s", "min", "h"), None),
        ("dp", ("cp", "tp", "dp_shard"), None),
        ("gate_pro", ("gate_proj", "gate_prox"), None),
        ("anything", (), None),
        ("", ("a",), None),
    ],
)
def test_a_suggestion_is_near_and_alone(name: str, candidates: tuple[str, ...], found: str | None) -> None:
    assert closest(name, candidates) == found
