"""Runs that go on without a lost node, and with it when it is back. The nodes are one machine's."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.launch.processes import LAUNCHER_VARIABLES, ROOT, free_port, start, torchrun
from tests.parity.cases import Case, plan_text
from tests.patience import WAIT_SECONDS, wait_until

BIN = Path(sys.executable).parent
NUM_STEPS = 120
ELASTIC = "\nelastic on dp_replicate {\n  sizes = [1]\n}\n"
_LAST_CALL = "--rdzv-conf last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=3"
"""So that a node which is lost is not waited for as long as on a real cluster."""


def elastic_plan(workspace: Path, *, replicas: int, tp: int, num_steps: int) -> Path:
    text = plan_text(Case("x", "", {"dp_replicate": replicas, "tp": tp}, micro_batch=1), saves=True)
    text = text.replace("steps = 6\n", f"steps = {num_steps}\n")
    text = text.replace("save_every = 3 steps", "save_every = 2 steps")
    plan = workspace / f"elastic-{replicas}-{tp}.plan"
    plan.write_text(text + ELASTIC, encoding="utf-8")
    return plan


def losses(run: Path) -> list[float]:
    """Of each step, in order; none is missing and none comes twice."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    return [line["loss"] for line in lines]


@pytest.mark.slow
def test_ranks_that_fill_no_mesh_stand_by_until_the_run_is_done(workspace: Path, tmp_path: Path) -> None:
    """Three ranks for a mesh of two: 2 x 2 ranks that lost one."""
    plan = elastic_plan(workspace, replicas=2, tp=2, num_steps=6)
    outcome = torchrun(3, str(plan), "--run-dir", str(tmp_path / "run"))
    assert outcome.code == 0, outcome.stderr
    assert "rank 2 waits as a spare: the mesh tp=2 needs no more ranks" in outcome.stderr
    assert "(2 ranks, cpu, gloo)" in outcome.stdout
    assert len(losses(tmp_path / "run")) == 6


@contextmanager
def node(line: str, log: Path) -> Iterator[subprocess.Popen[str]]:
    """A node's agent, ended with all of its ranks."""
    inherited = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    settings = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "PATH": path}
    with log.open("w") as output:
        agent = subprocess.Popen(
            shlex.split(line), env=inherited | settings, stdout=output, stderr=output, text=True
        )
        try:
            yield agent
        finally:
            if agent.poll() is None:
                lose(agent)


def lose(agent: subprocess.Popen[str]) -> None:
    """A node lost: agent and ranks end at once, without a word."""
    ranks = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
    for process in (agent.pid, *map(int, ranks)):
        os.kill(process, signal.SIGKILL)
    agent.wait()


def await_step(run: Path, step: int, *, log: Path) -> None:
    metrics = run / "metrics.jsonl"

    def is_there() -> bool:
        return metrics.exists() and len(metrics.read_text().splitlines()) >= step

    try:
        wait_until(is_there, f"step {step}")
    except AssertionError as error:
        raise AssertionError(f"{error}: {log.read_text()[-3000:]}") from None


@pytest.mark.slow
def test_a_run_goes_on_without_the_node_that_came_first_where_they_meet_elsewhere(
    workspace: Path, tmp_path: Path
) -> None:
    """Where the first node hosts the store, the others end with it."""
    plan, run = elastic_plan(workspace, replicas=2, tp=1, num_steps=40), tmp_path / "run"
    endpoint = ("--rdzv-endpoint", f"localhost:{free_port()}", "--meet-elsewhere")
    printed = start(
        sys.executable, "-m", "planc", "launch", str(plan), "--nodes", "2", *endpoint, "--run-dir", str(run)
    )
    line, *_, store = printed.stdout.splitlines()
    line = line.replace("is_host=0", f"is_host=0,{_LAST_CALL.removeprefix('--rdzv-conf ')}")
    logs = [tmp_path / f"{name}.log" for name in ("store", "lost", "kept")]
    with node(store, logs[0]), node(line, logs[1]) as lost:
        time.sleep(2)  # the node that comes first has rank 0
        with node(line, logs[2]) as kept:
            await_step(run, 4, log=logs[1])
            lose(lost)
            assert kept.wait(WAIT_SECONDS) == 0, logs[2].read_text()[-3000:]
    assert "(2 ranks, cpu, gloo)" in logs[1].read_text(), "the lost node had rank 0"
    assert "(1 rank, cpu, gloo)" in logs[2].read_text(), "and the other went on"
    assert len(losses(run)) == 40


@pytest.mark.slow
def test_a_run_goes_on_without_a_lost_node_and_with_it_when_it_is_back(
    workspace: Path, tmp_path: Path
) -> None:
    plan, run = elastic_plan(workspace, replicas=2, tp=2, num_steps=NUM_STEPS), tmp_path / "run"
    text = plan.read_text().replace("save_every = 2 steps", "save_every = 10 steps")
    plan.write_text(text.replace("model {\n", "model {\n  dtype = float64\n"), encoding="utf-8")
    endpoint = ("--rdzv-endpoint", f"localhost:{free_port()}")
    printed = start(
        sys.executable, "-m", "planc", "launch", str(plan), "--nodes", "2", *endpoint, "--run-dir", str(run)
    )
    line = printed.stdout.splitlines()[0].replace("--rdzv-id", f"{_LAST_CALL} --rdzv-id")
    logs = [tmp_path / f"{name}.log" for name in ("kept", "lost", "back")]
    with node(line, logs[0]) as kept:
        time.sleep(2)  # the node that comes first has rank 0
        with node(line, logs[1]) as lost:
            await_step(run, 15, log=logs[0])
            lose(lost)
        await_step(run, 30, log=logs[0])
        with node(line, logs[2]) as back:
            assert kept.wait(2 * WAIT_SECONDS) == 0, logs[0].read_text()[-3000:]
            assert back.wait(WAIT_SECONDS) == 0, logs[2].read_text()[-3000:]
    said = logs[0].read_text()
    assert "(2 ranks, cpu, gloo)" in said, "it went on without the node"
    assert said.count("(4 ranks, cpu, gloo)") == 2, "and with it again"
    undisturbed = torchrun(4, str(plan), "--run-dir", str(tmp_path / "undisturbed"))
    assert undisturbed.code == 0, undisturbed.stderr
    assert losses(run) == pytest.approx(losses(tmp_path / "undisturbed"), rel=1e-9)
