"""A run as a user starts it: real processes, what they print, what they return."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from planc.graph.artifact import dump
from tests import signals
from tests.launch.processes import ROOT, start, torchrun, without_torch, without_torchrun
from tests.parity.cases import TP2_DP2, Case, compile_case, make_workspace, plan_text
from tests.parity.reference import train_reference, write_weights
from tests.patience import is_within, patient

FOUR_RANKS = Case("TP2·DP2", "", TP2_DP2)
TWO_RANKS = Case("DP2", "", {"dp_shard": 2}, weights="pretrained")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_workspace(tmp_path_factory.mktemp("launch") / "workspace", ("llama",))
    write_weights(folder / "llama")
    (folder / "four.plan").write_text(plan_text(FOUR_RANKS), encoding="utf-8")
    (folder / "two.plan").write_text(plan_text(TWO_RANKS, saves=True), encoding="utf-8")
    (folder / "one.plan").write_text(plan_text(Case("1")), encoding="utf-8")
    artifact = dump(compile_case(FOUR_RANKS, workspace=folder), sources=(), overrides=())
    (folder / "four.json").write_text(artifact, encoding="utf-8")
    return folder


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_wrong_number_of_ranks_is_one_error_without_a_traceback_of_planc(workspace: Path) -> None:
    outcome = torchrun(2, str(workspace / "four.plan"))
    assert outcome.code == 1, "torchrun's own code for every failure"
    own, _, summary = outcome.stderr.partition("torch/distributed/elastic")
    assert own.count("error[P301]") == 1
    assert f"torchrun --standalone --nproc-per-node 4 -m planc.run {workspace / 'four.plan'}" in own
    assert "planc/run.py" not in outcome.stderr
    assert "exitcode  : 2" in summary.partition("Root Cause")[2]
    assert is_within(outcome.seconds, 10)


@pytest.mark.slow
def test_torchruns_summary_ends_with_the_reason(workspace: Path) -> None:
    outcome = torchrun(2, str(workspace / "four.json"))
    root_cause = outcome.stderr.partition("Root Cause")[2]
    assert "the mesh dp_shard=2 tp=2 needs 4 processes, but 2 processes were started" in root_cause


@pytest.mark.parametrize("optimise", [(), ("-O",)], ids=["", "python -O"])
@pytest.mark.parametrize("plan", ["four.plan", "four.json"])
def test_one_process_for_four_ranks_names_the_command(
    plan: str, optimise: tuple[str, ...], workspace: Path, no_torch: Path
) -> None:
    path = str(workspace / plan)
    outcome = start(sys.executable, *optimise, "-m", "planc.run", path, first_on_path=no_torch)
    assert outcome.code == 2
    assert f"start it with: torchrun --standalone --nproc-per-node 4 -m planc.run {path}" in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert outcome.stdout == ""


@pytest.mark.parametrize("program", [("-m", "planc.run"), ("-m", "planc", "run")], ids=" ".join)
def test_the_command_starts_the_very_run_that_was_asked_for(
    program: tuple[str, ...], workspace: Path, no_torch: Path
) -> None:
    options = ("--set", "train.steps=4", "--set", "optimizer.kind=adamw(lr = 1e-3)", "--run-dir", "a b")
    words = (str(workspace / "four.plan"), *options, "--stop-after", "3", "--sample-ids")
    outcome = start(sys.executable, *program, *words, first_on_path=no_torch)
    assert outcome.code == 2
    line = outcome.stderr.partition("start it with: ")[2]
    assert shlex.split(line) == [
        *("torchrun", "--standalone", "--nproc-per-node", "4", "-m", "planc.run"),
        *words,
    ]


def test_a_plan_for_several_nodes_names_the_command_of_each(workspace: Path, no_torch: Path) -> None:
    path = str(workspace / "four.plan")
    outcome = without_torch(path, "--set", "mesh.devices_per_node=2", no_torch=no_torch)
    assert outcome.code == 2
    line = "torchrun --nnodes 2 --node-rank NODE --nproc-per-node 2 --rdzv-endpoint HOST:PORT -m planc.run"
    assert f"start it with: {line} {path} --set mesh.devices_per_node=2  (on each node" in outcome.stderr


def test_a_plan_that_no_launch_would_run_names_no_command(
    workspace: Path, no_torch: Path, tmp_path: Path
) -> None:
    plan = tmp_path / "x.plan"
    plan.write_text((workspace / "four.plan").read_text().replace('hf = "', 'hf = "not/'))
    outcome = without_torch(str(plan), no_torch=no_torch)
    assert outcome.code == 2
    assert "error[P216]" in outcome.stderr
    assert "start it with" not in outcome.stderr


def test_an_interrupt_ends_the_run_after_its_step(workspace: Path, tmp_path: Path) -> None:
    options = ("--set", "train.steps=9_000", "--run-dir", str(tmp_path / "run"))
    command = (sys.executable, "-u", "-m", "planc.run", str(workspace / "one.plan"), *options)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, env=environment, preexec_fn=signals.reset
    )
    with process, patient(process, "the first step, then the end after SIGINT"):
        assert process.stdout is not None and process.stderr is not None
        assert next(line for line in process.stdout if line.startswith("step "))
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        said = "planc: SIGINT received on rank 0: exiting; send it again to exit at once\n"
        assert process.stderr.read().endswith(said)
        process.wait()
    assert process.returncode == 75
    assert json.loads((tmp_path / "run" / "status.json").read_text())["exit_code"] == 75


def test_the_time_left_ends_where_the_run_is_to_stop(workspace: Path, tmp_path: Path) -> None:
    options = ("--set", "train.steps=1_000_000", "--stop-after", "2", "--run-dir", str(tmp_path / "run"))
    outcome = start(sys.executable, "-m", "planc.run", str(workspace / "one.plan"), *options)
    assert outcome.code == 0, outcome.stderr
    steps = [line for line in outcome.stdout.splitlines() if line.startswith("step ")]
    assert len(steps) == 2
    assert steps[0].partition("left ")[2] < "0:01:00"
    assert steps[1].endswith("left 0:00:00")


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "0"}, "RANK is set, but WORLD_SIZE and LOCAL_RANK are not"),
        (
            {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"},
            "RANK and WORLD_SIZE are set, but LOCAL_RANK is not",
        ),
        ({"RANK": "\N{ARABIC-INDIC DIGIT ZERO}", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}, "is not a number"),
    ],
)
def test_half_a_launch_ends_at_once(
    environment: dict[str, str], message: str, workspace: Path, no_torch: Path
) -> None:
    outcome = without_torch(str(workspace / "four.plan"), no_torch=no_torch, environment=environment)
    assert outcome.code == 2
    assert outcome.stderr.count("\n") == 2
    assert outcome.stderr.startswith("planc: error: ")
    assert f"{message}\nhelp: " in outcome.stderr


def test_a_taken_port_is_named_with_a_free_one(workspace: Path, no_torch: Path, taken_port: int) -> None:
    environment = {
        "RANK": "0",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(taken_port),
    }
    outcome = without_torch(str(workspace / "four.plan"), no_torch=no_torch, environment=environment)
    assert outcome.code == 6
    assert f"cannot listen on MASTER_PORT = {taken_port}: Address already in use" in outcome.stderr
    free = re.search(r"choose another port: (\d+) is free", outcome.stderr)
    assert free is not None
    assert int(free[1]) != taken_port


def test_ranks_with_different_plans_are_refused(workspace: Path, tmp_path: Path) -> None:
    command = (str(workspace / "two.plan"), "--run-dir", str(tmp_path / "run"))
    for outcome in without_torchrun(command, (*command, "--set", "model.seed=8")):
        assert outcome.code == 2
        assert outcome.stderr.startswith("planc: error: ranks differ: the compiled plan is sha256 ")
        assert "; the plan's override is --set model.seed=8 on rank 1 (" in outcome.stderr
        assert "), and none on the other rank\nhelp: start every rank with the same plan" in outcome.stderr
        assert outcome.stderr.count("\n") == 2
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [".lock", "status.json"]


@pytest.mark.slow
def test_numbers_that_explode_end_the_run_with_its_own_code(workspace: Path, tmp_path: Path) -> None:
    command = (
        *(str(workspace / "two.plan"), "--run-dir", str(tmp_path / "run")),
        *("--set", "optimizer.kind=adamw(lr = 1.0e30, weight_decay = 0.0)"),
    )
    for outcome in without_torchrun(command, command):
        assert outcome.code == 5
        assert "the gradient norm is nan at step 2, and no weight was changed" in outcome.stderr
        assert "Traceback" not in outcome.stderr
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("failed", 5)


@pytest.mark.slow
def test_a_run_of_one_process_goes_on_under_torchrun_as_if_it_had_never_stopped(
    workspace: Path, tmp_path: Path
) -> None:
    arguments = (str(workspace / "two.plan"), "--run-dir", str(tmp_path / "run"), "--sample-ids")
    alone = ("--set", "mesh.dp_shard=1", "--stop-after", "2")
    first = start(sys.executable, "-m", "planc.run", *arguments, *alone)
    second = torchrun(2, *arguments, "--stop-after", "4")
    for outcome in (first, second):
        assert (outcome.code, outcome.stderr) == (0, "")
        assert "Warning" not in outcome.stdout
    assert "resumed from" not in first.stdout
    place = tmp_path / "run" / "checkpoints" / "step-2"
    assert f"resumed from {place} (saved by another plan, " in second.stdout
    assert "its mesh: dp_shard 1 -> 2)" in second.stdout
    assert "since the checkpoint was saved: mesh.dp_shard 1 -> 2 (changes only rounding)" in second.stdout
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    reference = train_reference("llama", workspace=workspace)
    assert [line["loss"] for line in lines] == pytest.approx(reference.losses[:4], rel=1e-5)
    assert [line["grad_norm"] for line in lines] == pytest.approx(reference.grad_norms[:4], rel=1e-5)
    rates = [rate for (rate,) in reference.learning_rates]
    assert [line["learning_rate"] for line in lines] == pytest.approx(rates[:4], rel=1e-12)
    assert [tuple(line["sample_ids"]) for line in lines] == list(reference.sample_ids[:4])
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["state"], status["exit_code"], status["step"]) == ("stopped", 0, 4)
