"""For any plan in any layout: the same meaning, the same comments, and nothing left to format."""

from __future__ import annotations

import re

from hypothesis import HealthCheck, given, settings

from planc.fmt.format import format_source, tree_without_spans
from planc.source import SourceFile
from tests.fmt.generated import Written, written_plans
from tests.syntax.mutations import damaged
from tests.syntax.reading import parsed

RUN = settings(
    max_examples=100, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # fmt: skip


def formatted(text: str) -> str:
    """The formatted text of a plan that parses."""
    result, problems = format_source(SourceFile("x.plan", text))
    assert result is not None, (text, problems)
    return result


def depth(line: str) -> int:
    return len(line) - len(line.lstrip())


@RUN
@given(written_plans())
def test_the_tree_stays(plan: Written) -> None:
    assert tree_without_spans(parsed(formatted(plan.text))) == tree_without_spans(parsed(plan.text))


@RUN
@given(written_plans())
def test_every_comment_stays_in_its_order(plan: Written) -> None:
    text = formatted(plan.text)
    assert re.findall(r"#\d+:", text) == [f"#{number}:" for number in range(len(plan.comments))]
    assert all(f"{comment}\n" in text for comment in plan.comments)


@RUN
@given(written_plans())
def test_what_is_formatted_formats_to_itself(plan: Written) -> None:
    once = formatted(plan.text)
    assert formatted(once) == once


@RUN
@given(written_plans())
def test_blanks_are_in_order(plan: Written) -> None:
    text = formatted(plan.text)
    lines = text.removesuffix("\n").split("\n")
    assert text == "" or (text.endswith("\n") and not text.endswith("\n\n") and not text.startswith("\n"))
    assert [line for line in lines if line != line.rstrip()] == []
    assert "\n\n\n" not in text
    for before, line, after in zip(lines, lines[1:], lines[2:], strict=False):
        # Deeper after it: the start of a block. Less deep: its end.
        assert line or depth(before) == depth(after)


@RUN
@given(damaged())
def test_any_text_is_formatted_or_refused_with_findings(text: str) -> None:
    result, problems = format_source(SourceFile("x.plan", text))
    assert bool(problems) == (result is None)
