"""`planc sweep` and `planc runs`: real runs at the points of a grid, stopped half-way and started again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from planc.cli.main import main
from planc.runtime.checkpoint_format.layout import step_directory
from planc.runtime.checkpoint_format.verify import read_manifest
from tests.patience import WAIT_SECONDS, patient, wait_until
from tests.soak.launches import children, send

GRID = ("--grid", "optimizer.kind.lr=1e-4,1e-3", "model.seed=0..1")
NAMES = [f"lr={lr},seed={seed}" for lr in ("1e-4", "1e-3") for seed in (0, 1)]


def sweep(plan: Path, *more: str, into: str = "swept") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "planc", "sweep", str(plan), *GRID, "--run-dir", into, *more]
    return subprocess.Popen(
        command, cwd=plan.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def states(folder: Path) -> dict[str, str]:
    files = (folder / "swept").glob("*/status.json")
    return {path.parent.name: json.loads(path.read_text())["state"] for path in files}


@pytest.mark.slow
def test_a_sweep_that_is_stopped_goes_on_where_it_was(plan: Path) -> None:
    folder = plan.parent
    # Long enough to be met in the middle of the second run.
    plan.write_text(plan.read_text().replace("steps = 6", "steps = 300"))
    first = sweep(plan)
    second = folder / "swept" / NAMES[1] / "metrics.jsonl"
    deadline = time.monotonic() + WAIT_SECONDS
    while not second.exists() or second.read_text().count("\n") < 5:
        assert time.monotonic() < deadline and first.poll() is None
        time.sleep(0.05)
    first.send_signal(signal.SIGTERM)
    said, _ = first.communicate(timeout=WAIT_SECONDS)
    assert first.returncode == 75, said
    assert states(folder) == {NAMES[0]: "done", NAMES[1]: "preempted"}
    kept = (folder / "swept" / NAMES[0] / "metrics.jsonl").read_bytes()
    left = int(json.loads((folder / "swept" / NAMES[1] / "status.json").read_text())["step"])
    assert 0 < left < 300
    trained = second.read_text().splitlines()[:left]

    again = sweep(plan)
    said, _ = again.communicate(timeout=WAIT_SECONDS)
    assert again.returncode == 0, said
    assert states(folder) == dict.fromkeys(NAMES, "done")
    assert "4 runs, 1 done" in said
    assert (folder / "swept" / NAMES[0] / "metrics.jsonl").read_bytes() == kept
    # Speeds and times are of the first run, up to the step where it was stopped.
    assert second.read_text().splitlines()[:left] == trained
    steps = [json.loads(line)["step"] for line in second.read_text().splitlines()]
    assert steps == [*range(1, 301)]
    table = said.splitlines()[-5:]
    assert table[0].split()[:5] == ["run", "state", "step", "loss", "tokens/s"]
    assert [row.split()[:3] for row in table[1:]] == [[name, "done", "300/300"] for name in sorted(NAMES)]
    # Nothing is left to run, and a sweep of another plan does not take these for its own.
    third = sweep(plan)
    assert "4 runs, 4 done" in third.communicate(timeout=WAIT_SECONDS)[0] and third.returncode == 0
    other = sweep(plan, "--set", "train.steps=301")
    assert "has a run of another plan" in other.communicate(timeout=WAIT_SECONDS)[0]
    assert other.returncode == 2


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def trained(folder: Path, *, step: int) -> tuple[object, ...]:
    """What a run has computed: every step's loss and gradient norm, and its last checkpoint."""
    of_steps = [json.loads(line) for line in lines(folder / "metrics.jsonl")]
    losses = [(line["step"], line["loss"], line["grad_norm"]) for line in of_steps]
    saved = read_manifest(step_directory(folder / "checkpoints", step=step))
    return losses, saved.parts, saved.contents, saved.progress


def descendants(pid: int) -> list[int]:
    return [each for child in children(pid) for each in (child, *descendants(child))]


@pytest.mark.slow
@pytest.mark.parametrize("is_lost", [True, False], ids=["machine lost", "sweep killed alone"])
def test_a_sweep_that_is_killed_goes_on_and_ends_as_one_that_is_not(plan: Path, is_lost: bool) -> None:
    folder, steps = plan.parent, 60
    text = plan.read_text().replace("save_every = 100", "save_every = 10")
    plan.write_text(text.replace("steps = 6", f"steps = {steps}"))
    whole = sweep(plan, into="whole")
    printed, _ = whole.communicate(timeout=WAIT_SECONDS)
    assert whole.returncode == 0, printed

    killed = sweep(plan)
    second = folder / "swept" / NAMES[1]
    wait_until(lambda: len(lines(second / "metrics.jsonl")) > 25 or killed.poll() is not None, "step 25")
    others = descendants(killed.pid)
    # A rank that is left behind must not end before the next sweep meets it.
    for pid in others:
        send(pid, signal.SIGKILL if is_lost else signal.SIGSTOP)
    send(killed.pid, signal.SIGKILL)
    assert killed.wait(WAIT_SECONDS) == -signal.SIGKILL and len(others) >= 2
    assert states(folder) == {NAMES[0]: "done", NAMES[1]: "running"}
    first = (folder / "swept" / NAMES[0] / "metrics.jsonl").read_bytes()

    again = sweep(plan)
    assert again.stdout is not None
    printed = ""
    try:
        with patient(again, "the end of the second sweep"):
            for line in again.stdout:
                printed += line
                if "waiting until it ends" in line:
                    for pid in others:
                        send(pid, signal.SIGCONT)
    except AssertionError:
        for pid in others:
            send(pid, signal.SIGKILL)
        raise
    assert again.wait(WAIT_SECONDS) == 0, printed
    assert "4 runs, 1 done" in printed and states(folder) == dict.fromkeys(NAMES, "done")
    assert f"resumed from {second.relative_to(folder)}/checkpoints/step-20" in printed or not is_lost
    assert ("is running this point" in printed) is not is_lost
    assert (folder / "swept" / NAMES[0] / "metrics.jsonl").read_bytes() == first
    for name in NAMES:
        assert trained(folder / "swept" / name, step=steps) == trained(folder / "whole" / name, step=steps)


@pytest.mark.slow
def test_a_run_that_fails_does_not_keep_the_others_from_running(plan: Path) -> None:
    folder = plan.parent
    blocked = folder / "swept" / NAMES[0]
    blocked.mkdir(parents=True)
    (blocked / "checkpoints").write_text("in the way")
    process = sweep(plan)
    said, _ = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 1, said
    assert f"{NAMES[0]} failed with exit code 4" in said
    assert {name: state for name, state in states(folder).items() if name != NAMES[0]} == dict.fromkeys(
        NAMES[1:], "done"
    )


def test_every_point_is_checked_before_one_runs(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(
        ["sweep", str(plan), "--grid", "train.tokens_per_step=128,100", "--run-dir", str(plan.parent)]
    )
    printed = capsys.readouterr()
    assert code == 1
    assert "tokens_per_step=100:" in printed.err and "P701" in printed.err
    assert "1 point of 2 can't run" in printed.err and "tokens_per_step=128:" not in printed.err


def test_printed_commands_are_those_that_would_run(
    plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(plan.parent)
    assert main(["sweep", plan.name, *GRID, "--set", "train.steps=2", "--print"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and not (plan.parent / "runs").exists()
    assert lines[0] == (
        "torchrun --standalone --nproc-per-node 1 -m planc.run x.plan --set train.steps=2 "
        "--set optimizer.kind.lr=1e-4 --set model.seed=0 "
        "--run-dir runs/x-sweep/lr=1e-4,seed=0"
    )
    branching = ("--set", 'checkpoint.resume="runs/first"', "--allow-change", "optimizer lr")
    assert main(["sweep", plan.name, *GRID, *branching, "--print"]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("seed=0 --allow-change 'optimizer lr'")


def test_runs_shows_what_differs_and_reads_damaged_ones(
    plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import planc

    folder = plan.parent / "many"
    for name, settings in {"a": [], "b": ["model.seed=7"], "c/d": ["train.steps=3"]}.items():
        planc.run(plan, run_dir=folder / name, overrides=settings, quiet=True)
    (folder / "broken").mkdir()
    (folder / "broken" / "plan.json").write_text("{}")
    capsys.readouterr()
    assert main(["runs", str(folder)]) == 0
    printed = capsys.readouterr()
    header, *rows = printed.out.splitlines()
    assert header.split()[:5] == ["run", "state", "step", "loss", "tokens/s"]
    assert [row.split()[:3] for row in rows] == [
        ["a", "done", "6/6"],
        ["b", "done", "6/6"],
        ["c/d", "done", "3/3"],
    ]
    assert "seed" in header and "steps" in header
    assert rows[1].split()[-2:] != rows[0].split()[-2:]
    assert "broken" in printed.err
    assert main(["runs", str(folder), "--sort", "loss"]) == 0
    losses = [float(row.split()[3]) for row in capsys.readouterr().out.splitlines()[1:]]
    assert losses == sorted(losses)
    assert main(["runs", str(folder / "none")]) == 2
