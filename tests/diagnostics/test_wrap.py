"""Long texts of a finding in lines that fit."""

from __future__ import annotations

import pytest
from findings import ERROR, NOTE, span

from planc.diagnostics import Diagnostic, Label
from planc.diagnostics.human import HumanRenderer
from planc.diagnostics.wrap import num_cells, wrap
from planc.source import SourceFile

PROSE = "one of these words is meant: " + ", ".join(f"word_{number}" for number in range(40))
CODE = "add `fsdp on dp_shard { replicate_on = dp_replicate }` to the plan"


def test_a_short_text_stays_as_it_is() -> None:
    assert wrap("a  b", cells=4) == ("a  b",)


def test_lines_break_between_words_and_lose_nothing() -> None:
    lines = wrap(PROSE, cells=40)
    assert all(num_cells(line) <= 40 for line in lines)
    assert " ".join(lines) == PROSE


def test_code_stays_on_one_line() -> None:
    assert wrap(CODE, cells=53) == (
        "add",
        "`fsdp on dp_shard { replicate_on = dp_replicate }` to",
        "the plan",
    )


def test_code_that_no_line_holds_breaks_at_its_spaces() -> None:
    assert wrap("`a bb ccc`", cells=6) == ("`a bb", "ccc`")


def test_a_word_that_no_line_holds_has_its_own() -> None:
    assert wrap("a bbbbbbbb c", cells=4) == ("a", "bbbbbbbb", "c")


def test_wide_characters_take_two_cells() -> None:
    assert wrap("数数 数数", cells=8) == ("数数", "数数")


@pytest.mark.parametrize(("cells", "lines"), [(9, ("abc  (de)",)), (8, ("abc", "(de)"))])
def test_a_tail_ends_the_last_line_or_has_its_own(cells: int, lines: tuple[str, ...]) -> None:
    assert wrap("abc", cells=cells, tail="(de)") == lines


def rendered(diagnostic: Diagnostic, *, text: str = "ab\n", width: int | None = None) -> list[str]:
    source = SourceFile("plans/x.plan", text)
    return HumanRenderer({source.name: source}, width=width).render([diagnostic]).splitlines()


def test_texts_go_on_under_themselves() -> None:
    lines = rendered(ERROR.at(span(1, 1, 3), PROSE, notes=(PROSE,), help=PROSE), width=60)
    assert all(num_cells(line) <= 60 for line in lines)
    label = lines.index("1 | ab") + 1
    assert lines[label].startswith("  | ^^ one of") and lines[label + 1].startswith("  |    word_")
    note = next(index for index, line in enumerate(lines) if line.startswith("  = one of"))
    assert lines[note + 1].startswith("    word_")
    help = next(index for index, line in enumerate(lines) if line.startswith("help: one of"))
    assert lines[help + 1].startswith("      word_")


def test_a_label_without_room_beside_its_marks_stands_below() -> None:
    lines = rendered(NOTE.at(span(1, 61, 71), "a text that has no room"), text=f"{'x' * 70}\n", width=76)
    row = lines.index(f"1 | {'x' * 70}")
    assert lines[row + 1] == f"  | {' ' * 60}{'^' * 10}"
    assert "a text that has no room" in lines[row + 2]
    assert all(num_cells(line) <= 76 for line in lines)


def test_without_a_terminal_lines_end_at_the_default_width() -> None:
    lines = rendered(ERROR.at(span(1, 1, 3), notes=(PROSE,)))
    assert 100 < max(map(num_cells, lines)) <= 120


def test_a_narrow_terminal_still_shows_everything() -> None:
    shown = "".join(rendered(ERROR.at(span(1, 1, 3), PROSE), width=10))
    assert all(f"word_{number}" in shown for number in range(40))


def test_labels_on_an_unknown_source_are_wrapped_too() -> None:
    diagnostic = Diagnostic(ERROR, Label(span(1, 1, 2, file="gone.plan"), PROSE))
    assert all(num_cells(line) <= 60 for line in rendered(diagnostic, width=60))


def test_what_an_encoding_lacks_is_replaced_before_wrapping() -> None:
    source = SourceFile("plans/x.plan", "ab\n")
    renderer = HumanRenderer({source.name: source}, width=60, encoding="ascii")
    text = renderer.render([ERROR.at(span(1, 1, 3), notes=("ü " * 60,))])
    assert text.isascii() and all(len(line) <= 60 for line in text.splitlines())


def test_colour_is_on_every_line_of_a_label() -> None:
    source = SourceFile("plans/x.plan", "ab\n")
    text = HumanRenderer({source.name: source}, colour=True, width=60).render(
        [ERROR.at(span(1, 1, 3), PROSE)]
    )
    labels = [line for line in text.splitlines() if "word_" in line]
    assert len(labels) > 2 and all("\033[31m" in line for line in labels)
