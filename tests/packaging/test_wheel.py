"""What a wheel holds: the grammar, the parser's table, the pages; and that it works without the checkout."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.patience import WAIT_SECONDS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel unpacked, as pip would."""
    folder = tmp_path_factory.mktemp("wheel")
    build(ROOT, "wheel", folder)
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def build(source: Path, target: str, folder: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=WAIT_SECONDS)


def run(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with the unpacked wheel as its only planc."""
    return subprocess.run(
        [sys.executable, "-P", *arguments],
        cwd=installed.parent,
        env={"PYTHONPATH": str(installed), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )


def test_the_grammar_and_every_page_are_inside(installed: Path) -> None:
    assert (installed / "planc" / "syntax" / "plan.lark").read_text() == (
        ROOT / "grammar" / "plan.lark"
    ).read_text()
    for folder in ("explain", "symptoms"):
        made, written = (root / "planc" / "diagnostics" / folder for root in (installed, ROOT))
        assert {page.name for page in made.glob("*.md")} == {page.name for page in written.glob("*.md")}


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


def test_the_wheel_writes_a_page(installed: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    plan = str(ROOT / "plans" / "quickstart.plan")
    result = run(installed, "-m", "planc", "report", plan, "-o", str(page))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "uPlot" in page.read_text(encoding="utf-8")


def test_types_are_for_whoever_installs_it(installed: Path) -> None:
    assert (installed / "planc" / "py.typed").is_file()


def test_a_wheel_of_the_sdist_has_the_same_files(installed: Path, tmp_path: Path) -> None:
    """A package index builds from the sdist: it must hold all that a wheel is made of."""
    build(ROOT, "sdist", tmp_path)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    source = next(path for path in tmp_path.iterdir() if path.is_dir())
    build(source, "wheel", tmp_path)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        files = {name for name in wheel.namelist() if name.startswith("planc/")}
    found = (path for path in (installed / "planc").rglob("*") if path.is_file())
    assert files == {
        path.relative_to(installed).as_posix() for path in found if "__pycache__" not in path.parts
    }
    assert all((source / name).exists() for name in ("docs/conf.py", "plans", "CITATION.cff", "Dockerfile"))


def test_nothing_but_planc_is_installed(installed: Path) -> None:
    assert {path.name.partition("-")[0] for path in installed.iterdir()} == {"planc"}


def test_the_plans_that_ship_are_inside_with_their_models(installed: Path, tmp_path: Path) -> None:
    plan = tmp_path / "first.plan"
    written = run(installed, "-m", "planc", "new", "--example", "launch-two-nodes", "-o", str(plan))
    assert written.returncode == 0, written.stderr
    found = run(installed, "-m", "planc", "check", str(plan))
    assert found.returncode == 0, found.stderr + found.stdout
