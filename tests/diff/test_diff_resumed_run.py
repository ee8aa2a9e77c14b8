"""`planc diff` on what a real run leaves that went on under another plan."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from planc.cli.main import main
from tests.patience import WAIT_SECONDS
from tests.plans import TINY, write_plan

ROOT = Path(__file__).parents[2]


def train(plan: Path, folder: Path, *arguments: str) -> None:
    """A run on this process alone."""
    command = [sys.executable, "-m", "planc.run", str(plan), "--run-dir", str(folder), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_SECONDS)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_each_checkpoint_of_a_run_is_compared_as_the_plan_that_saved_it(tmp_path: Path) -> None:
    text = TINY.replace("size: int = 2", "size: int = 1").replace("tp = 2", "tp = 1")
    text = text.replace("tensor_parallel on tp {\n  auto\n}\n", "").replace("steps = 10", "steps = 2")
    text = (
        text.replace('text("data/*.txt")', "python_stdlib()") + "\ncheckpoint {\n  save_every = 1 steps\n}\n"
    )
    plan, run = write_plan(tmp_path, text=text), tmp_path / "run"
    train(plan, run, "--stop-after", "1")
    clipped = ("--set", "optimizer.clip_grad_norm=1.0", "--allow-change", "optimizer.clip_grad_norm")
    train(plan, run, *clipped)
    first, second = (str(run / "checkpoints" / f"step-{step}") for step in (1, 2))
    assert main(["diff", first, str(plan), "--exit-code"]) == 0
    assert main(["diff", second, str(plan), "--exit-code"]) == 1
    assert main(["diff", second, str(plan), "--set", "optimizer.clip_grad_norm=1.0", "--exit-code"]) == 0
