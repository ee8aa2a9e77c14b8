"""Runs under torchrun that are asked to stop, or lose a rank, resume exactly as if nothing had happened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from planc.runtime.checkpoint_format.layout import step_directory
from planc.runtime.checkpoint_format.manifest import PartEntry
from planc.runtime.checkpoint_format.verify import read_manifest
from tests import signals
from tests.launch.processes import LAUNCHER_VARIABLES, ROOT, torchrun
from tests.parity.cases import Case, make_workspace, plan_text
from tests.patience import WAIT_SECONDS, patient

NUM_STEPS = 120
FAULTY = str(Path(__file__).parent / "faulty_run.py")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """A plan of two ranks, and the parts of the last checkpoint of a run of it."""

    plan: Path
    parts: tuple[PartEntry | None, ...]


def last_parts(run: Path) -> tuple[PartEntry | None, ...]:
    return read_manifest(step_directory(run / "checkpoints", step=NUM_STEPS)).parts


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    folder = make_workspace(tmp_path_factory.mktemp("told") / "workspace", ("llama",))
    text = plan_text(Case("DP2", "", {"dp_shard": 2}), saves=True)
    text = text.replace("steps = 6\n", f"steps = {NUM_STEPS}\n")
    text = text.replace("save_every = 3 steps", "save_every = 40 steps")
    plan = folder / "two.plan"
    plan.write_text(text, encoding="utf-8")
    outcome = torchrun(2, str(plan), "--run-dir", str(folder / "run"))
    assert outcome.code == 0, outcome.stderr
    return Undisturbed(plan, last_parts(folder / "run"))


@pytest.mark.slow
def test_a_signal_to_torchrun_saves_and_the_run_goes_on_exactly(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    arguments = (str(undisturbed.plan), "--run-dir", str(tmp_path))
    inherited = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
    settings = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    command = (*TORCHRUN, "-m", "planc.run", *arguments)
    agent = subprocess.Popen(
        command, env=inherited | settings, stdout=subprocess.PIPE, text=True, preexec_fn=signals.reset
    )
    with agent, patient(agent, "the first step, then torchrun's end after SIGTERM"):
        assert agent.stdout is not None
        assert next(line for line in agent.stdout if line.startswith("step "))
        # As `tee` leaves, which hears the same Ctrl-C.
        agent.stdout.close()
        agent.send_signal(signal.SIGTERM)
        agent.wait()
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["state"], status["exit_code"], status["signal"]) == ("preempted", 75, "SIGTERM")
    assert 0 < status["step"] == status["saved_step"] < NUM_STEPS
    again = torchrun(2, *arguments)
    assert again.code == 0, again.stderr
    assert f"resumed from {step_directory(tmp_path / 'checkpoints', step=status['step'])}" in again.stdout
    assert last_parts(tmp_path) == undisturbed.parts


@pytest.mark.slow
def test_torchrun_starts_ranks_again_that_go_on_exactly(undisturbed: Undisturbed, tmp_path: Path) -> None:
    inherited = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
    settings = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "FAULT": "kill 1 50 forward"}
    command = (*TORCHRUN, "--max-restarts=1", FAULTY, str(undisturbed.plan), "--run-dir", str(tmp_path))
    done = subprocess.run(
        command, env=inherited | settings, capture_output=True, text=True, timeout=WAIT_SECONDS
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"resumed from {tmp_path / 'checkpoints' / 'step-40'}") == 1
    assert json.loads((tmp_path / "status.json").read_text())["state"] == "done"
    assert last_parts(tmp_path) == undisturbed.parts
