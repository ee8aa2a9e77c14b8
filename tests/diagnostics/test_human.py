"""Findings for people: the lines of a snippet, findings about a whole file, and the count."""

from __future__ import annotations

import pytest

from planc.diagnostics import Applicability, Diagnostic, Fix, Label
from planc.diagnostics.human import HumanRenderer, count
from planc.source import SourceFile, Span
from planc.syntax.codes import UNEXPECTED_TOKEN

SOURCE = SourceFile("x.plan", "\n".join(f"line{number}" for number in range(1, 10)))


def at(line: int) -> Span:
    return Span("x.plan", line, 1, line, 3)


def shown(primary: int, *others: int) -> list[str]:
    """The lines of the snippet of a finding on one line, with labels on others."""
    labels = tuple(Label(at(line), "there") for line in others)
    found = UNEXPECTED_TOKEN.at(at(primary), "here", secondary=labels)
    lines = HumanRenderer({"x.plan": SOURCE}).render([found]).split("\n")
    return lines[3 : next(number for number, line in enumerate(lines) if line.startswith("help"))]


def test_lines_that_are_far_apart_have_dots_between() -> None:
    assert shown(5, 1) == ["1 | line1", "  | -- there", "...", "5 | line5", "  | ^^ here"]


def test_one_line_between_is_shown() -> None:
    assert shown(3, 1) == ["1 | line1", "  | -- there", "2 | line2", "3 | line3", "  | ^^ here"]


def test_lines_next_to_each_other_have_nothing_between() -> None:
    assert shown(2, 1) == ["1 | line1", "  | -- there", "2 | line2", "  | ^^ here"]


def test_dots_stand_between_every_two_distant_lines() -> None:
    assert shown(1, 5, 9).count("...") == 2


def test_a_finding_about_a_file_names_the_file_and_no_line() -> None:
    text = HumanRenderer({"x.plan": SOURCE}).render(
        [UNEXPECTED_TOKEN.at(SOURCE.start(), "the plan lacks it")]
    )
    assert text.split("\n")[1:3] == [" --> x.plan", "  | the plan lacks it"]
    assert "line1" not in text


def test_a_label_on_a_line_of_such_a_file_has_a_snippet() -> None:
    label = Label(at(4), "there")
    found = UNEXPECTED_TOKEN.at(SOURCE.start(), "the plan lacks it", secondary=(label,))
    lines = HumanRenderer({"x.plan": SOURCE}).render([found]).split("\n")
    assert lines[1:6] == [" --> x.plan", "  | the plan lacks it", "  |", "4 | line4", "  | -- there"]


def fixable(applicability: Applicability | None) -> Diagnostic:
    fix = Fix(at(1), "x", applicability) if applicability else None
    return UNEXPECTED_TOKEN.at(at(1), "here", fix=fix)


@pytest.mark.parametrize(
    ("fixes", "expected"),
    [
        ([None], "Found 1 error."),
        ([Applicability.UNSAFE, Applicability.DISPLAY_ONLY], "Found 2 errors."),
        ([Applicability.SAFE, None, None], "Found 3 errors (1 fixable with `planc check --fix`)."),
        ([Applicability.SAFE] * 2, "Found 2 errors (2 fixable with `planc check --fix`)."),
    ],
)
def test_the_count_names_the_command_that_applies_safe_fixes(
    fixes: list[Applicability | None], expected: str
) -> None:
    assert count([fixable(one) for one in fixes]) == expected
