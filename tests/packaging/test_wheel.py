"""What a wheel holds: the grammar, the parser's table, the pages; and that it works without the checkout."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel unpacked, as pip would."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def run(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with the unpacked wheel as its only planc."""
    return subprocess.run(
        [sys.executable, "-P", *arguments],
        cwd=installed.parent,
        env={"PYTHONPATH": str(installed), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_grammar_and_every_page_are_inside(installed: Path) -> None:
    assert (installed / "planc" / "syntax" / "plan.lark").read_text() == (
        ROOT / "grammar" / "plan.lark"
    ).read_text()
    pages = {page.name for page in (ROOT / "planc" / "diagnostics" / "explain").glob("*.md")}
    assert {page.name for page in (installed / "planc" / "diagnostics" / "explain").glob("*.md")} == pages


def test_the_parser_comes_from_the_table(installed: Path) -> None:
    program = (
        "import planc.syntax.grammar as grammar\n"
        "def refuse(): raise SystemExit('the table was not used')\n"
        "grammar.build_parser = refuse\n"
        "print(grammar.parser().parse('mesh.tp = 2', start='assignment').data, grammar.__file__)\n"
    )
    result = run(installed, "-c", program)
    assert result.stdout.startswith("assignment"), result.stderr
    assert str(installed) in result.stdout


def test_a_table_of_another_grammar_is_not_used(installed: Path) -> None:
    program = (
        "import planc.syntax.grammar as grammar, planc.syntax.table as table\n"
        "table.TABLE['grammar'] = 'stale'\n"
        "built = []\n"
        "build = grammar.build_parser\n"
        "grammar.build_parser = lambda: built.append(1) or build()\n"
        "grammar.parser().parse('mesh.tp = 2', start='assignment')\n"
        "print(len(built))\n"
    )
    assert run(installed, "-c", program).stdout == "1\n"


def test_the_wheel_checks_a_plan(installed: Path) -> None:
    result = run(installed, "-m", "planc", "check", str(ROOT / "plans" / "quickstart.plan"))
    assert result.returncode == 0, result.stdout + result.stderr


def test_nothing_but_planc_is_installed(installed: Path) -> None:
    assert {path.name.partition("-")[0] for path in installed.iterdir()} == {"planc"}
