"""A repository with a branch that changes plans, and the commands that a job finds on its path."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from shutil import copytree

import pytest

from tests.patience import WAIT_SECONDS
from tests.plans import PLANS, TINY

ROOT = Path(__file__).parents[2]

COMMON = """\
param lr: float(0.0 .. 1.0) = 1e-3

tensor_parallel "by_head" {
  auto
}

optimizer "adam" {
  kind = adamw(lr = lr)
}
"""


def git(*arguments: str) -> str:
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    done = subprocess.run(
        ["git", *identity, *arguments], capture_output=True, text=True, timeout=WAIT_SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def commit() -> None:
    git("add", "-A", "plans")
    git("commit", "-qm", "a change")


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, f"nothing to edit: {old}"
    path.write_text(text.replace(old, new))


@pytest.fixture
def plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The plans' folder in a repository on branch `change`, made from `main`: four plans and a preset."""
    folder = tmp_path / "repository" / "plans"
    (folder / "presets").mkdir(parents=True)
    monkeypatch.chdir(folder.parent)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    copytree(PLANS / "models" / "tiny-llama", folder / "models" / "tiny-llama")
    (folder / "presets" / "common.plan").write_text(COMMON)
    for name in ("batch", "comments", "gone", "untouched"):
        (folder / f"{name}.plan").write_text(TINY)
    uses = TINY.replace("  auto\n", "  use common.by_head\n").replace(
        "  kind = adamw(lr = 1e-3)\n", "  use common.adam\n"
    )
    (folder / "uses.plan").write_text(f'import "presets/common.plan" as common\n\n{uses}')
    git("init", "-q", "-b", "main")
    commit()
    git("switch", "-qc", "change")
    return folder


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path with `planc` in it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    planc = folder / "planc"
    planc.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m planc "$@"\n')
    planc.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return folder
