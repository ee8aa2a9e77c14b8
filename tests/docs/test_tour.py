"""The tour of the language: its blocks are one sound plan, each beside PyTorch that exists."""

from __future__ import annotations

import ast as python
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from planc.api import check_plan
from planc.fmt.format import format_source
from planc.plan.blocks import BLOCKS
from planc.source import SourceFile
from planc.syntax import ast
from tests.plans import PLANS
from tests.syntax.reading import covered, parsed

ROOT = Path(__file__).parents[2]
TOUR = (ROOT / "docs" / "concepts" / "tour.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\S+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCES = [(kind, name, text) for kind, name, text in FENCE.findall(TOUR)]

PARTS = [text for kind, name, text in FENCES if kind == "plan" and not name]
"""What makes one plan together."""
VARIANTS = [text for kind, name, text in FENCES if (kind, name) == ("plan", "instead")]
"""Blocks that may stand there in place of those of their kind."""
ALONE = [text for kind, name, text in FENCES if (kind, name) == ("plan", "alone")]
"""Whole plans, for blocks that the others rule out."""
FILES = {name: text for kind, name, text in FENCES if kind == "plan" and name.endswith(".plan")}
"""Files that include each other."""
PYTHON = [text for kind, _, text in FENCES if kind == "python"]

WHOLE = "\n".join(PARTS)


def blocks(text: str) -> list[ast.Block]:
    return [statement for statement in parsed(text).statements if isinstance(statement, ast.Block)]


def findings(folder: Path, text: str, *, name: str = "tour.plan") -> list[str]:
    if not (folder / "models").exists():
        (folder / "models").symlink_to(PLANS / "models")
    (folder / name).write_text(text)
    return [f"{one.code.code} {one.primary.text}" for one in check_plan(folder / name).diagnostics]


def test_the_blocks_of_the_tour_are_one_sound_plan(tmp_path: Path) -> None:
    assert findings(tmp_path, WHOLE) == []


@pytest.mark.parametrize("text", ALONE)
def test_a_plan_that_stands_alone_is_sound(text: str, tmp_path: Path) -> None:
    assert findings(tmp_path, text) == []


def test_the_tour_has_every_kind_of_block_once() -> None:
    kinds = [block.kind.text for block in blocks(WHOLE)]
    assert len(kinds) == len(set(kinds))
    alone = {block.kind.text for text in ALONE for block in blocks(text)}
    assert {*kinds, *alone} == {*BLOCKS, "expect"}


@pytest.mark.parametrize("text", VARIANTS)
def test_a_block_that_may_stand_instead_is_sound_there(text: str, tmp_path: Path) -> None:
    (variant,) = blocks(text)
    (replaced,) = (block for block in blocks(WHOLE) if block.kind.text == variant.kind.text)
    assert findings(tmp_path, WHOLE.replace(covered(WHOLE, replaced.span), text)) == []


def test_the_files_of_the_tour_are_a_sound_plan(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    *_, top = FILES
    assert findings(tmp_path, FILES[top], name=top) == []


@pytest.mark.parametrize("text", [*PARTS, *VARIANTS, *ALONE, *FILES.values()])
def test_plans_are_laid_out_as_fmt_does(text: str) -> None:
    found, _ = format_source(SourceFile("x.plan", text))
    assert found == text


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("text", PYTHON)
def test_the_pytorch_beside_a_plan_compiles_and_its_imports_exist(text: str) -> None:
    for node in python.walk(python.parse(text)):
        match node:
            case python.ImportFrom(module=str(module), names=names):
                assert [name.name for name in names if not hasattr(import_module(module), name.name)] == []
            case python.Import(names=names):
                assert all(import_module(name.name) for name in names)


def test_every_block_of_the_tour_is_beside_pytorch() -> None:
    assert len(PYTHON) == len(PARTS) + len(ALONE)
