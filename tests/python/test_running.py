"""`planc.run` and `planc.Run` on one rank, as in a notebook: the command's run, in a program that goes on."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import planc
from planc.runtime.checkpoint_format.layout import committed_steps
from tests.launch.processes import start


@pytest.fixture(autouse=True)
def leaves_the_process_as_it_was() -> Iterator[None]:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    yield
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert not dist.is_initialized()


def status(folder: Path) -> Any:
    return json.loads((folder / "status.json").read_text())


def steps_of(folder: Path) -> list[tuple[int, float]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [(one["step"], one["loss"]) for one in map(json.loads, lines)]


def test_a_run_is_that_of_the_command(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own, command = tmp_path / "own", tmp_path / "command"
    result = planc.run(plan, run_dir=own, overrides=["train.steps=4"])
    shown = capsys.readouterr().out
    done = start(
        sys.executable, "-m", "planc.run", str(plan), "--run-dir", str(command), "--set", "train.steps=4"
    )
    assert done.code == 0
    assert steps_of(own) == steps_of(command)
    assert status(own) == status(command)
    assert (own / "plan.json").read_bytes() == (command / "plan.json").read_bytes()
    without_speed = [line.partition(" epoch ")[0] for line in done.stdout.splitlines() if "step   " in line]
    assert all(line in shown for line in without_speed)
    assert (result.state, result.code, result.last_step, result.num_steps) == ("done", 0, 4, 4)
    assert result.checkpoint == own / "checkpoints" / "step-4"
    assert result.losses == steps_of(own) and [one["step"] for one in result.metrics] == [1, 2, 3, 4]
    assert repr(result).startswith("done after step 4 of 4\n  loss       ")


def test_each_step_comes_when_it_is_done(plan: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = planc.Run(plan, run_dir=folder, quiet=True)
    with pytest.raises(ValueError, match="not ended"):
        _ = run.result
    seen = list(run)
    assert [(one.step, one.loss) for one in seen] == steps_of(folder)
    assert [one.learning_rate for one in seen] == [1e-3] * 6 and {one.labels for one in seen} == {128}
    assert run.result.state == "done"
    with pytest.raises(ValueError, match="runs once"):
        iter(run)


def test_a_run_that_is_asked_to_stop_saves_and_resumes(plan: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = planc.Run(planc.compile(plan, overrides=["checkpoint.resume=latest"]), run_dir=folder, quiet=True)
    for step in run:
        if step.step == 2:
            run.stop()
    assert (run.result.state, run.result.last_step, status(folder)["state"]) == ("stopped", 2, "stopped")
    assert committed_steps(folder / "checkpoints") == (2,)
    again = planc.Run(plan, overrides=["checkpoint.resume=latest"], run_dir=folder, quiet=True)
    assert [one.step for one in again] == [3, 4, 5, 6]
    whole = tmp_path / "whole"
    planc.run(plan, run_dir=whole, quiet=True)
    assert steps_of(folder) == steps_of(whole)


def test_a_loop_that_is_left_ends_its_run_without_saving(plan: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for step in planc.Run(plan, run_dir=folder, quiet=True):
        if step.step == 3:
            break
    assert (status(folder)["state"], status(folder)["step"]) == ("stopped", 3)
    assert committed_steps(folder / "checkpoints") == ()
    with planc.Run(plan, run_dir=folder, quiet=True) as run:
        steps = iter(run)
        next(steps)
    assert run.result.state == "stopped" and run.result.last_step == 1


def test_what_the_loop_raises_is_the_programs_own(plan: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(ZeroDivisionError):
        for _ in planc.Run(plan, run_dir=folder, quiet=True):
            _ = 1 / 0
    assert status(folder)["state"] == "stopped"


def test_a_run_that_fails_raises_with_the_commands_code(plan: Path, tmp_path: Path) -> None:
    with pytest.raises(planc.PlanRefused) as refused:
        planc.run(plan, run_dir=tmp_path / "a", overrides=["mesh.dp_replicate=2"], quiet=True)
    assert refused.value.code == 2
    assert status(tmp_path / "a")["exit_code"] == 2
    (tmp_path / "words.txt").unlink()
    with pytest.raises(planc.RunError) as caught:
        planc.run(plan, run_dir=tmp_path / "b", quiet=True)
    failed = status(tmp_path / "b")
    assert (failed["exit_code"], failed["state"]) == (caught.value.code, "failed")
    assert caught.value.message in failed["error"]
    (tmp_path / "words.txt").write_text("more words " * 400)
    assert planc.run(plan, run_dir=tmp_path / "b", quiet=True).state == "done"


def test_secrets_stay_out_of_what_a_run_prints(
    plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnop")
    planc.run(plan, run_dir=tmp_path / "hf_abcdefghijklmnop", stop_after=1)
    shown = capsys.readouterr().out
    assert "hf_abcdefghijklmnop" not in shown and "***" in shown
    print("hf_abcdefghijklmnop")
    assert "hf_abc" in capsys.readouterr().out
