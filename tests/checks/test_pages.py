"""Every code has a page, is registered, and is what its page's failing example gives."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from variants import MODELS, Check

import planc
from planc.api import CODES
from planc.checks import RULES
from planc.diagnostics import Code, Severity
from planc.diagnostics.pages import page, pages
from planc.diff.codes import CODES as CHANGE_CODES
from planc.doctor.codes import CODES as MACHINE_CODES
from planc.plan.blocks import BLOCKS

PACKAGE = Path(planc.__path__[0])
WITHOUT_PLAN = (
    *("P100", "P103", "P105", "P106", "P110", "P234", "P235", "P236"),
    *("P850", "P851", "P852", "P860", "P861", "P862"),
)
"""Codes of files that cannot be read, or are too many, of rehearsals and of data: no text shows them."""

EXAMPLE = re.compile(r"^```plan (fails|passes)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^```(?:plan|python) (\S+\.(?:plan|py))\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A file that the page's examples, which are `example.plan`, may include."""
DIRECTIVE = re.compile(r"^# (world-size|set): (.+)$", re.MULTILINE)


def examples(code: str, outcome: str) -> list[str]:
    text = page(code)
    assert text is not None
    return [match.group(2) for match in EXAMPLE.finditer(text) if match.group(1) == outcome]


def files(code: str) -> dict[str, str]:
    return dict(FILE.findall(page(code) or ""))


def findings(check: Check, code: str, text: str) -> list[str]:
    """The codes of errors and warnings, and the page's own, under the launch that comments describe."""
    directives = DIRECTIVE.findall(text)
    world_sizes = [int(value) for name, value in directives if name == "world-size"]
    settings = tuple(value for name, value in directives if name == "set")
    world_size = world_sizes[0] if world_sizes else None
    checked = check(text, world_size=world_size, settings=settings, files=files(code))
    found = checked.diagnostics
    return [d.code.code for d in found if d.severity is not Severity.NOTE or d.code.code == code]


def test_codes_are_unique() -> None:
    codes = (*CODES, *CHANGE_CODES, *MACHINE_CODES)
    assert len({code.code for code in codes}) == len({code.name for code in codes}) == len(codes)


def test_every_code_in_the_source_is_registered() -> None:
    written = {
        match
        for path in PACKAGE.rglob("*.py")
        for match in re.findall(r"\bCode\(\s*\"(P\d+)\"", path.read_text(encoding="utf-8"))
    }
    assert written == {code.code for code in (*CODES, *CHANGE_CODES, *MACHINE_CODES)}


def test_every_rule_file_is_registered() -> None:
    files = {
        path.stem
        for path in (PACKAGE / "checks").rglob("*.py")
        if re.search(r"^@(reports|judges_layouts)\(", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert files == {rule.check.__module__.rpartition(".")[2] for rule in RULES}


def test_every_code_has_a_page_and_every_page_a_code() -> None:
    assert set(pages()) == {code.code for code in (*CODES, *CHANGE_CODES, *MACHINE_CODES)}


@pytest.mark.parametrize("code", (*CODES, *CHANGE_CODES, *MACHINE_CODES), ids=lambda code: code.code)
def test_page_is_titled_with_its_code_and_name(code: Code) -> None:
    text = page(code.code)
    assert text is not None
    assert text.splitlines()[0] == f"# {code.code}: {code.name}"


@pytest.mark.parametrize("code", WITHOUT_PLAN)
def test_page_without_a_plan_describes_the_case(code: str) -> None:
    text = page(code)
    assert text is not None
    assert "```text\n" in text
    assert not EXAMPLE.search(text)


def test_the_page_on_unknown_blocks_lists_every_block() -> None:
    listed = (page("P201") or "").partition("Known blocks are ")[2].partition(".")[0]
    assert re.findall(r"`(\w+)`", listed) == [*BLOCKS, "expect"]


def test_models_of_the_examples_ship() -> None:
    named = {
        model
        for code in pages()
        for text in (*examples(code, "fails"), *examples(code, "passes"))
        for model in re.findall(r'hf = "models/(.*)"', text)
    }
    assert {model for model in named if not (MODELS / model).is_dir()} == {"tiny-lama"}  # P216 is about it


WITH_PLAN = [code.code for code in CODES if code.code not in WITHOUT_PLAN]


@pytest.mark.parametrize("code", WITH_PLAN)
def test_failing_example_gives_exactly_its_code(code: str, check: Check) -> None:
    for text in (found := examples(code, "fails")):
        assert findings(check, code, text) == [code]
    assert found


@pytest.mark.parametrize("code", WITH_PLAN)
def test_passing_example_is_clean(code: str, check: Check) -> None:
    for text in (found := examples(code, "passes")):
        assert findings(check, code, text) == []
    assert found
