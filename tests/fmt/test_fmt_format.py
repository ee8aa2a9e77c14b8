"""The layout, as file pairs: `x.in.plan` beside `x.out.plan`, rewritten by --update-goldens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from planc.fmt.format import WIDTH, format_source
from planc.show.resolved import resolved_text
from planc.source import SourceFile
from planc.syntax.parse import MAX_CHARACTERS
from tests.plans import FULL, QUICKSTART, TINY, canonical_plans, checked, write_plan

HERE = Path(__file__).parent
CASES = sorted(HERE.glob("*.in.plan"))


def formatted(text: str) -> str:
    """The formatted text of a plan that parses."""
    result, problems = format_source(SourceFile("x.plan", text))
    assert result is not None, problems
    return result


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.name.removesuffix(".in.plan"))
def test_layout(path: Path, match_golden: Callable[[Path, str], None]) -> None:
    golden = path.with_name(path.name.replace(".in.", ".out."))
    match_golden(golden, formatted(path.read_text(encoding="utf-8")))


def test_every_output_has_an_input() -> None:
    outputs = {path.name.replace(".out.", ".in.") for path in HERE.glob("*.out.plan")}
    assert outputs == {path.name for path in CASES}


@pytest.mark.parametrize("path", canonical_plans(), ids=lambda path: path.stem)
def test_canonical_plan_is_formatted(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert formatted(text) == text


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize("path", canonical_plans(), ids=lambda path: path.stem)
def test_resolved_plan_is_formatted(path: Path) -> None:
    bound = checked(path).bound
    assert bound is not None
    text = resolved_text(bound)
    assert formatted(text) == text


@pytest.mark.parametrize("text", [FULL, TINY], ids=["full", "auto"])
def test_resolved_plan_of_every_kind_is_formatted(tmp_path: Path, text: str) -> None:
    bound = checked(write_plan(tmp_path, text=text)).bound
    assert bound is not None
    assert formatted(resolved_text(bound)) == resolved_text(bound)


@pytest.mark.parametrize("text", ["", "\n", " \t\n\n  "])
def test_a_file_without_content_becomes_empty(text: str) -> None:
    assert formatted(text) == ""


def test_windows_newlines_become_plain_ones() -> None:
    assert formatted("a = 1 # x\r\n\r\n\r\nb = [\r\n2]\r\n") == "a = 1  # x\n\nb = [2]\n"


def test_a_plan_squeezed_into_few_lines_comes_back() -> None:
    text = QUICKSTART.read_text(encoding="utf-8")
    squeezed = text.replace("\n  ", "\n").replace(" = ", "=").replace(" -> ", "->")
    assert formatted(squeezed) == text


@pytest.mark.parametrize("num_items", [1, 3])
def test_a_list_breaks_one_column_after_the_width(num_items: int) -> None:
    fixed = len("x = []") + num_items * len('""') + (num_items - 1) * len(", ")
    room = WIDTH - fixed
    for excess, num_lines in ((0, 1), (1, num_items + 2)):
        items = ['""'] * (num_items - 1) + [f'"{"a" * (room + excess)}"']
        assert len(formatted(f"x = [{', '.join(items)}]").splitlines()) == num_lines


def test_a_plan_that_does_not_parse_has_findings_and_no_text() -> None:
    text, problems = format_source(SourceFile("x.plan", "mesh {\n"))
    assert text is None
    assert [problem.code.code for problem in problems] == ["P108"]


def test_a_plan_that_would_grow_beyond_what_parses_is_refused() -> None:
    items = '"12345678901234",' * (MAX_CHARACTERS // 20 + 1)
    text, problems = format_source(SourceFile("x.plan", f"x = [{items}]"))
    assert text is None
    assert [problem.code.code for problem in problems] == ["P105"]
