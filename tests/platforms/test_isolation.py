"""Tests see nothing of who runs them, and a session that writes into the checkout fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from planc.api import cache_dir
from tests.isolation import ROOT, isolate
from tests.patience import WAIT_SECONDS


def test_variables_and_home_of_a_user_are_gone(tmp_path: Path) -> None:
    mine = {
        "HOME": "/home/x",
        "PLANC_CACHE": "/x",
        "HF_HOME": "/x",
        "WORLD_SIZE": "8",
        "TP_SIZE": "2",
        "SLURM_PROCID": "1",
        "GIT_DIR": "/x",
        "NO_COLOR": "1",
        "COLUMNS": "40",
        "LC_ALL": "tr_TR",
    }
    environment = {**mine, "PATH": "/bin", "OMP_NUM_THREADS": "3"}
    isolate(environment, home=tmp_path)
    assert environment["HOME"] == str(tmp_path)
    assert not (mine.keys() - {"HOME"}) & environment.keys()
    assert (environment["PATH"], environment["OMP_NUM_THREADS"]) == ("/bin", "3")


def test_this_session_is_isolated() -> None:
    assert Path.home().name.startswith("home-")
    assert cache_dir().is_relative_to(Path.home())
    assert not [name for name in os.environ if name.startswith(("SLURM_", "PLANC_", "GIT_DIR"))]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with this suite's conftest and two modules of tests."""
    tests = tmp_path / "tests"
    tests.mkdir()
    for name in ("conftest.py", "isolation.py"):
        shutil.copy(ROOT / "tests" / name, tests / name)
    for name in ("a", "b"):
        names = "".join(f"def test_{name}{number}(): pass\n" for number in range(4))
        (tests / f"test_{name}.py").write_text(names, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n", encoding="utf-8")
    for arguments in (("init", "-q"), ("add", "-A")):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True, timeout=WAIT_SECONDS)
    return tmp_path


def session(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-v", *arguments],
        cwd=checkout,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )


@pytest.mark.slow
def test_a_session_that_writes_into_the_checkout_fails(checkout: Path) -> None:
    assert session(checkout).returncode == 0
    text = "def test_c(): open('left behind', 'w').close()\n"
    (checkout / "tests" / "test_c.py").write_text(text, encoding="utf-8")
    done = session(checkout)
    assert done.returncode == 1
    assert "files of the checkout were written during the tests: left behind" in done.stdout
    assert session(checkout).returncode == 0, "what lay there before is not the tests'"
    text = "def test_c(): open('tests/test_a.py', 'a').write('#')\n"
    (checkout / "tests" / "test_c.py").write_text(text, encoding="utf-8")
    assert session(checkout).returncode == 1


@pytest.mark.slow
def test_a_seed_gives_another_order_in_which_modules_stay_whole(checkout: Path) -> None:
    def order(*arguments: str) -> list[str]:
        lines = session(checkout, *arguments).stdout.splitlines()
        return [line.partition("::")[2].split()[0] for line in lines if "::test_" in line]

    orders = [order("--shuffle", str(seed)) for seed in range(3)]
    assert sorted(orders[0]) == order() == sorted(order())
    assert len({tuple(one) for one in orders}) == 3
    for one in orders:
        assert len([1 for first, second in pairwise(one) if first[5] != second[5]]) == 1


def test_ci_runs_the_two_commands_as_they_stand() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("make")] == ["make quickstart", "make test"]
    assert not [line for line in lines if line.startswith(("export", "VENV=", "RUN_DIR="))]
