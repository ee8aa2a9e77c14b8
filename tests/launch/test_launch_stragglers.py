"""A rank that is slower than the others is named, and ends nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.launch.processes import Outcome, start
from tests.parity.cases import Case, make_workspace, plan_text

FAULTY = str(Path(__file__).parent / "faulty_run.py")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
STEPS = 16


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_workspace(tmp_path_factory.mktemp("stragglers") / "workspace", ("llama",))
    path = folder / "two.plan"
    path.write_text(plan_text(Case("DP2", "", {"dp_shard": 2}), saves=False), encoding="utf-8")
    return path


def run(plan: Path, folder: Path, *, fault: str) -> tuple[Outcome, list[int]]:
    """How it ended, and the steps after which rank 1 is among the stragglers of metrics.jsonl."""
    steps = ("--set", f"train.steps={STEPS}")
    command = (*TORCHRUN, FAULTY, str(plan), "--run-dir", str(folder), *steps)
    outcome = start(*command, environment={"FAULT": fault})
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return outcome, [one["step"] for one in metrics if one.get("stragglers") == [1]]


@pytest.mark.slow
@pytest.mark.parametrize("op", ["batch.next", "backward"])
def test_a_rank_that_takes_200_ms_longer_is_named_within_20_steps(
    plan: Path, tmp_path: Path, op: str
) -> None:
    outcome, steps = run(plan, tmp_path, fault=f"drag 1 1 {op}")
    assert outcome.code == 0, outcome.stderr
    assert steps[:1] == [10]
    lines = [line for line in outcome.stdout.splitlines() if "straggles" in line]
    assert len(lines) == 1
    assert lines[0].startswith("warning: step 10: rank 1 straggles: its own work takes 0.")


@pytest.mark.slow
def test_no_rank_is_named_where_all_take_equally_long(plan: Path, tmp_path: Path) -> None:
    outcome, steps = run(plan, tmp_path, fault="drag 7 1 forward")
    assert outcome.code == 0, outcome.stderr
    assert steps == []
