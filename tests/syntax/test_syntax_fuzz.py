"""No text makes the front end raise, or point outside the text."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from planc.diagnostics import Diagnostic
from planc.diagnostics.human import HumanRenderer
from planc.diagnostics.machine import render_concise, render_json
from planc.plan.overrides import parse_override
from planc.plan.partial import findings_of
from planc.plan.resolve import resolve
from planc.source import SourceFile
from planc.syntax.ast import Name
from planc.syntax.parse import parse, read
from planc.syntax.recovery import MAX_PROBLEMS
from tests.syntax.mutations import STRANGE, TEXTS, WORDS, damaged
from tests.syntax.reading import covered, nodes

# Derandomised, so that a failure belongs to the change under test. A run of any length is one edit away.
RUN = settings(
    max_examples=150, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # fmt: skip


def assert_sound(source: SourceFile, problems: Sequence[Diagnostic]) -> None:
    """Every finding lies in the text, says something, and can be shown anywhere."""
    lines = source.lines
    for problem in problems:
        span = problem.primary.span
        assert span.file == source.name
        assert 1 <= span.line <= span.end_line <= len(lines)
        assert 1 <= span.column <= len(lines[span.line - 1]) + 1
        # One past the end of a line stands for its newline.
        assert span.end_column <= len(lines[span.end_line - 1]) + 2
        assert (span.line, span.column) <= (span.end_line, span.end_column)
        assert problem.primary.text
    for shown in (HumanRenderer({source.name: source}).render(problems), render_concise(problems)):
        shown.encode("utf-8")
        assert shown.replace("\n", "").isprintable()
    render_json(problems).encode("ascii")


@RUN
@given(damaged())
@example("")
@example("\r")
def test_a_damaged_plan_is_a_tree_or_findings(text: str) -> None:
    source = SourceFile("x.plan", text)
    file, problems = parse(source)
    assert (file is None) == bool(problems)
    assert len(problems) <= MAX_PROBLEMS
    assert_sound(source, problems)


@RUN
@given(damaged())
def test_a_damaged_plan_that_parses_is_a_plan_or_findings(text: str) -> None:
    source = SourceFile("x.plan", text)
    file, _ = parse(source)
    if file is not None:
        plan, problems = resolve(file)
        assert (plan is None) == bool(problems)
        assert_sound(source, problems)


@RUN
@given(damaged())
def test_what_parses_of_a_damaged_plan_has_findings_that_lie_in_it(text: str) -> None:
    source = SourceFile("x.plan", text)
    recovered = read(source).recovered
    if recovered is not None:
        assert_sound(source, findings_of(recovered, source))
        for node in nodes(recovered.file.statements):
            span = getattr(node, "span", None)
            if isinstance(node, Name) and "." not in node.text:
                assert covered(text, span) == node.text


@RUN
@given(
    st.text(max_size=40) | st.lists(st.sampled_from([*WORDS, *STRANGE, "=", "."]), max_size=6).map("".join)
)
def test_any_text_is_an_override_or_one_finding(text: str) -> None:
    source = SourceFile("--set", text)
    override, problems = parse_override(source, kind="set")
    assert len(problems) == (1 if override is None else 0)
    assert_sound(source, problems)


PARSED, _ = parse(SourceFile("x.plan", TEXTS[0]))
VALUES = (
    *WORDS,
    *(f"{number} {unit}" for number in ("1", "1e999", "-2", "0.5") for unit in ("steps", "h", "x")),
)
TARGETS = (
    "mesh.tp",
    "mesh.timeout",
    "optimizer.kind",
    "data.source",
    "checkpoint.save_every",
    "tp_size",
    "model",
)


@RUN
@given(st.sampled_from(TARGETS), st.sampled_from(VALUES))
def test_any_override_gives_a_plan_or_findings(target: str, value: str) -> None:
    override, _ = parse_override(SourceFile("--set", f"{target}={value}"), kind="set")
    if override is not None:
        assert PARSED is not None
        plan, problems = resolve(PARSED, overrides=[override])
        assert (plan is None) == bool(problems)
        assert all(problem.primary.text for problem in problems)
