"""A user's own script under torchrun: `torchrun --nproc-per-node N your_script.py`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.launch.processes import ROOT, Outcome, start

SCRIPT = """\
import os, sys
import planc

plan, folder = sys.argv[1:]
rank = os.environ["RANK"]
overrides = ["mesh.dp_replicate=2", "checkpoint.resume=latest"]
first = planc.Run(plan, run_dir=folder, overrides=overrides, quiet=True)
for step in first:
    if step.step == 2 and rank == "1":
        first.stop()
sys.stdout.write(f"{rank} {first.result.state} {first.result.last_step}\\n")
sys.stdout.flush()
second = planc.run(plan, run_dir=folder, overrides=overrides, quiet=rank == "1")
sys.exit(second.code)
"""


def torchrun(*arguments: str, num_ranks: int = 2) -> Outcome:
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}")
    return start(sys.executable, *launcher, *arguments)


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_script_of_ones_own_runs_a_plan_twice_and_its_ranks_agree_to_stop(
    plan: Path, tmp_path: Path
) -> None:
    script, folder, whole = tmp_path / "your_script.py", tmp_path / "run", tmp_path / "whole"
    script.write_text(SCRIPT)
    done = torchrun(str(script), str(plan), str(folder))
    assert done.code == 0, done.stderr
    # Ranks write to one pipe: a line may follow the beginning of another's.
    assert all(text in done.stdout for text in ("0 stopped 2\n", "1 stopped 2\n"))
    assert "done\n" in done.stdout
    command = start(sys.executable, "-m", "planc.run", str(plan), "--run-dir", str(whole))
    assert command.code == 0, command.stderr
    assert losses(folder) == pytest.approx(losses(whole), rel=1e-5)


@pytest.mark.slow
def test_the_example_stops_at_its_loss(tmp_path: Path) -> None:
    example, plan = ROOT / "examples/from_python.py", ROOT / "examples/own_loop.plan"
    done = torchrun(str(example), str(plan), "--until", "4.5", "--run-dir", str(tmp_path))
    assert done.code == 0, done.stderr
    assert "stopped after step" in done.stdout


@pytest.mark.slow
def test_an_error_ends_torchrun_with_the_reason(plan: Path, tmp_path: Path) -> None:
    script = tmp_path / "your_script.py"
    script.write_text("import sys, planc\nplanc.run(sys.argv[1], run_dir=sys.argv[2])\n")
    done = torchrun(str(script), str(plan), str(tmp_path / "run"))
    assert done.code == 1
    assert "the mesh does not match the world size" in done.stderr
    assert json.loads((tmp_path / "run" / "status.json").read_text())["exit_code"] == 2
