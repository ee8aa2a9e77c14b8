"""A run's folder: status, metrics, and what a resumed run keeps of them."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest

from planc.runtime.errors import ExitCode, RunError
from planc.runtime.observer import SourceMetrics, StepMetrics
from planc.runtime.run_directory.directory import FolderInUseError, RunDirectory


def metrics(step: int, *, sample_ids: tuple[int, ...] = ()) -> StepMetrics:
    return StepMetrics(
        step=step,
        loss=5.0 / step,
        grad_norm=1.5,
        learning_rate=1e-3,
        tokens=512,
        labels=500,
        tokens_per_second=1000.0,
        tokens_per_second_per_device=250.0,
        seconds=0.5,
        memory_bytes=2**20,
        sample_ids=sample_ids,
    )


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory(tmp_path / "runs" / "a")
    directory.prepare(lambda folder: "{}", plan_hash="a")
    return directory


def lines(directory: RunDirectory) -> list[dict[str, object]]:
    text = (directory.path / "metrics.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def status(directory: RunDirectory) -> dict[str, object]:
    found: dict[str, object] = json.loads((directory.path / "status.json").read_text(encoding="utf-8"))
    return found


def test_preparing_makes_the_folder_and_stores_the_plan(tmp_path: Path) -> None:
    run = tmp_path / "a" / "b"
    RunDirectory(run).prepare(str, plan_hash="0123")
    assert (run / "plan.json").read_text() == str(run)


def test_every_plan_that_ran_is_kept_by_its_hash(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    for plan_hash in ("0123", "4567"):
        directory.prepare(lambda folder, text=plan_hash: f"{text} in {folder.name}", plan_hash=plan_hash)
    kept = {path.name: path.read_text() for path in (tmp_path / "plans").iterdir()}
    assert kept == {"0123.json": "0123 in plans", "4567.json": "4567 in plans"}


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError) as caught:
        RunDirectory(tmp_path / "file" / "run").prepare(str, plan_hash="0123")
    assert caught.value.code is ExitCode.STORAGE
    assert caught.value.help is not None
    assert "--run-dir" in caught.value.help


def test_a_folder_that_another_run_writes_to_is_refused(tmp_path: Path) -> None:
    with RunDirectory(tmp_path).claim():
        writer = f"another run writes to .*: process {os.getpid()} on "
        with pytest.raises(FolderInUseError, match=writer) as caught:
            RunDirectory(tmp_path).claim()
        assert caught.value.code is ExitCode.INPUT
    RunDirectory(tmp_path).claim().close()


def test_the_run_that_writes_to_a_folder_is_named_to_others(tmp_path: Path) -> None:
    assert RunDirectory(tmp_path / "none").other_writer() is None and not (tmp_path / "none").exists()
    with RunDirectory(tmp_path).claim():
        named = RunDirectory(tmp_path).other_writer()
        assert named is not None and named.startswith(f"process {os.getpid()} on ")
    assert RunDirectory(tmp_path).other_writer() is None
    RunDirectory(tmp_path).claim().close()


def test_each_step_is_one_line(directory: RunDirectory) -> None:
    directory.append_metrics(metrics(1))
    directory.append_metrics(metrics(2))
    assert [line["step"] for line in lines(directory)] == [1, 2]
    assert lines(directory)[0] == {
        "step": 1,
        "loss": 5.0,
        "grad_norm": 1.5,
        "learning_rate": 1e-3,
        "tokens": 512,
        "labels": 500,
        "tokens_per_second": 1000.0,
        "tokens_per_second_per_device": 250.0,
        "seconds": 0.5,
        "memory_bytes": 2**20,
        "memory_kind": "process",
    }


def test_sample_ids_are_written_when_there_are_any(directory: RunDirectory) -> None:
    directory.append_metrics(metrics(1, sample_ids=(4, 2)))
    assert lines(directory)[0]["sample_ids"] == [4, 2]


def test_the_sources_of_a_mixture_are_written_with_any_loss(directory: RunDirectory) -> None:
    found = (
        SourceMetrics("web", tokens=384, labels=380, loss=math.nan, epoch=1.5),
        SourceMetrics("code", tokens=0, labels=0, loss=None, epoch=0.0),
    )
    directory.append_metrics(replace(metrics(1), sources=found, epoch=0.25))
    (line,) = lines(directory)
    assert line["epoch"] == 0.25
    assert line["sources"] == [
        {"label": "web", "tokens": 384, "labels": 380, "loss": "nan", "epoch": 1.5},
        {"label": "code", "tokens": 0, "labels": 0, "loss": None, "epoch": 0.0},
    ]


def test_a_resumed_run_drops_the_steps_that_it_does_again(directory: RunDirectory) -> None:
    for step in range(1, 6):
        directory.append_metrics(metrics(step))
    directory.truncate_metrics(last_step=3)
    assert [line["step"] for line in lines(directory)] == [1, 2, 3]


def test_a_line_cut_short_by_a_crash_is_dropped(directory: RunDirectory) -> None:
    directory.append_metrics(metrics(1))
    path = directory.path / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 2, "lo', encoding="utf-8")
    directory.truncate_metrics(last_step=1)
    assert [line["step"] for line in lines(directory)] == [1]


def test_a_first_run_has_nothing_to_drop(directory: RunDirectory) -> None:
    directory.truncate_metrics(last_step=0)
    assert not (directory.path / "metrics.jsonl").exists()


def test_a_run_that_starts_over_keeps_the_metrics_of_those_before(directory: RunDirectory) -> None:
    for number in (1, 2):
        directory.append_metrics(metrics(number))
        assert directory.truncate_metrics(last_step=0) == f"metrics.{number}.jsonl"
        (kept,) = (directory.path / f"metrics.{number}.jsonl").read_text().splitlines()
        assert json.loads(kept)["step"] == number
    assert directory.losses() == []


def test_the_status_of_a_failed_run_holds_code_and_reason(directory: RunDirectory) -> None:
    directory.write_status("failed", code=ExitCode.NUMERICS, error="nan")
    assert status(directory) == {"state": "failed", "exit_code": 5, "error": "nan"}


def test_a_running_run_has_no_exit_code(directory: RunDirectory) -> None:
    directory.write_status("running", step=3)
    assert status(directory) == {"state": "running", "exit_code": None, "step": 3}


def test_nothing_temporary_stays(directory: RunDirectory) -> None:
    directory.write_status("running", step=3)
    room = ".status.json.room"
    assert sorted(os.listdir(directory.path)) == [room, "plan.json", "plans", "status.json"]
    directory.write_status("done", step=3)
    assert sorted(os.listdir(directory.path)) == ["plan.json", "plans", "status.json"]
