"""`.pre-commit-hooks.yaml`: each hook over the plans that ship, and what pre-commit says of a change."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.patience import WAIT_SECONDS
from tests.review.conftest import git, replace

ROOT = Path(__file__).parents[2]
HOOKS: list[dict[str, Any]] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
PLANS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "plans").rglob("*.plan"))


def hook(id: str) -> dict[str, Any]:
    (found,) = (hook for hook in HOOKS if hook["id"] == id)
    return found


def selected(id: str) -> list[str]:
    """The paths that pre-commit hands to a hook."""
    found = hook(id)
    return [
        path
        for path in PLANS
        if re.search(found["files"], path) and not re.search(found.get("exclude", "^$"), path)
    ]


@pytest.fixture
def without_torch(tmp_path: Path) -> dict[str, str]:
    """An environment of the base install: importing torch or transformers fails."""
    for name in ("torch", "transformers"):
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError('no {name} here')\n")
    return {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": "", "HOME": str(tmp_path)}


def run(id: str, *paths: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    program, *words = shlex.split(hook(id)["entry"])
    assert program == "planc"
    command = [sys.executable, "-m", "planc", *words, *paths]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=WAIT_SECONDS
    )


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("id", ["planc-fmt", "planc-check"])
def test_hook_passes_over_the_plans_that_ship_without_torch(id: str, without_torch: dict[str, str]) -> None:
    result = run(id, *selected(id), environment=without_torch)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_presets_are_formatted_but_not_checked() -> None:
    assert "plans/presets/llama.plan" in selected("planc-fmt")
    assert "plans/presets/llama.plan" not in selected("planc-check")
    assert "plans/quickstart.plan" in selected("planc-check")


def test_check_fails_on_a_faulty_plan(tmp_path: Path, without_torch: dict[str, str]) -> None:
    plan = tmp_path / "x.plan"
    plan.write_text("mesh {\n  tp = two\n}\n")
    result = run("planc-check", str(plan), environment=without_torch)
    assert result.returncode == 1
    assert f"{plan}:2:8: error[" in result.stdout


def test_fmt_rewrites_a_plan_which_pre_commit_takes_for_failure(
    tmp_path: Path, without_torch: dict[str, str]
) -> None:
    plan = tmp_path / "x.plan"
    plan.write_text("mesh{ tp=2 }\n")
    assert run("planc-fmt", str(plan), environment=without_torch).returncode == 0
    assert plan.read_text() != "mesh{ tp=2 }\n"


def test_hooks_are_installed_without_extras() -> None:
    assert [hook["language"] for hook in HOOKS] == ["python", "python"]
    assert all("additional_dependencies" not in hook for hook in HOOKS)


def pre_commit(home: Path) -> str:
    """What pre-commit prints of the staged files, with the hooks as the repository gives them.

    Their environment is this one: making one of their own would need the network.
    """
    hooks = [{**found, "language": "system"} for found in HOOKS]
    Path(".pre-commit-config.yaml").write_text(yaml.safe_dump({"repos": [{"repo": "local", "hooks": hooks}]}))
    git("add", ".pre-commit-config.yaml", "plans")
    command = [sys.executable, "-m", "pre_commit", "run", "--color", "never"]
    environment = {**os.environ, "PRE_COMMIT_HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_SECONDS)
    assert done.stderr == ""
    return f"$ git add plans && pre-commit run     # exit code {done.returncode}\n{done.stdout}\n"


@pytest.mark.skipif(find_spec("pre_commit") is None, reason="pre-commit is not installed")
@pytest.mark.usefixtures("tools")
def test_what_pre_commit_says_of_a_change(
    plans: Path, tmp_path: Path, match_golden: Callable[[Path, str], None]
) -> None:
    """A plan with a fault and a stray blank; formatted, then put right."""
    replace(plans / "batch.plan", "  tp = 2", "   tp = 3")
    replace(plans / "comments.plan", "steps = 10", "steps = 20")
    text = pre_commit(tmp_path / "home")
    text += pre_commit(tmp_path / "home")
    replace(plans / "batch.plan", "tp = 3", "tp = 4")
    text += pre_commit(tmp_path / "home")
    match_golden(Path(__file__).parent / "pre-commit.txt", text)
