"""The grammar as an artefact: where it is found, that it is unambiguous, how fast it is."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lark import Lark

from planc.source import SourceFile
from planc.syntax.grammar import BracketNewlines, grammar_text
from planc.syntax.parse import parse
from tests.patience import PATIENCE_SECONDS, WAIT_SECONDS

ROOT = Path(__file__).parents[2]
GRAMMAR = ROOT / "grammar" / "plan.lark"

_PARSE = (
    "from planc.source import SourceFile\n"
    "from planc.syntax import grammar\n"
    "from planc.syntax.parse import parse\n"
    "print(grammar.__file__, len(parse(SourceFile('x.plan', 'b { k = 1 }'))[0].statements))\n"
)


def test_the_checkout_s_grammar_is_the_one_in_the_grammar_folder() -> None:
    assert grammar_text() == GRAMMAR.read_text(encoding="utf-8")


def test_a_wheel_s_grammar_lies_beside_the_parser(tmp_path: Path) -> None:
    """A wheel has `planc/syntax/plan.lark` and no `grammar/` folder."""
    shutil.copytree(ROOT / "planc", tmp_path / "planc", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(GRAMMAR, tmp_path / "planc" / "syntax" / "plan.lark")
    result = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{_PARSE}"],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [str(tmp_path / "planc" / "syntax" / "grammar.py"), "1"]


def test_the_wheel_is_told_to_carry_the_grammar() -> None:
    assert '"grammar/plan.lark" = "planc/syntax/plan.lark"' in (ROOT / "pyproject.toml").read_text()


def test_the_grammar_has_no_conflict_in_strict_mode() -> None:
    """Strict mode refuses what Lark otherwise settles by itself: conflicts, and tokens that overlap."""
    pytest.importorskip("interegular", reason="Lark compares tokens with interegular")
    Lark(grammar_text(), parser="lalr", start=["start", "assignment"], strict=True, postlex=BracketNewlines())


@pytest.mark.parametrize(
    "text",
    ["\n" * 250_000, "#\n" * 125_000, " \t" * 124_999 + "$", '"' * 249_999, "}" * 250_000, '"a' * 125_000],
)
def test_long_runs_of_one_character_are_linear(text: str) -> None:
    start = time.process_time()
    parse(SourceFile("x.plan", text))
    assert time.process_time() - start < PATIENCE_SECONDS
