"""Trackers during training: their values, and what happens when they fail, hang or fall behind."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from planc.graph.ops import Tracker
from planc.outgoing import redactor
from planc.runtime.observer import Evaluation, SourceMetrics, StepMetrics
from planc.runtime.trackers import Following, Opening, following
from planc.runtime.trackers.tensorboard import TensorboardTracker
from planc.runtime.trackers.tracker import Open, values_of
from planc.runtime.trackers.wandb import wandb_opener
from tests.patience import WAIT_SECONDS, is_within, wait_until

METRICS = StepMetrics(
    step=1,
    loss=5.0,
    grad_norm=1.5,
    learning_rate=1e-3,
    tokens=512,
    labels=500,
    tokens_per_second=1000.0,
    tokens_per_second_per_device=250.0,
    seconds=0.5,
    memory_bytes=2**20,
    evaluations=(Evaluation("held_out", 4.5, 100),),
    mfu=0.4,
    phase_seconds={"forward": 0.2},
)


class Listed:
    """Records its calls."""

    def __init__(self) -> None:
        self.told: list[tuple[int, dict[str, float]]] = []
        self.finished: list[bool] = []

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        self.told.append((step, dict(values)))

    def finish(self, *, is_done: bool) -> None:
        self.finished.append(is_done)


class Broken(Listed):
    """Fails at every step."""

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        raise ConnectionError(f"no route to {os.environ['WANDB_API_KEY']}@host\nmore")


class Stuck(Listed):
    """Never comes back from its first step, until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        self.let_go.wait(WAIT_SECONDS)


def opening(folder: Path, *, first_step: int = 1) -> Opening:
    return Opening(folder, "tiny", "0123", {"tp": 2}, first_step)


def follow(folder: Path, open: Open) -> tuple[Following, list[str]]:
    """A started following of one tracker, and the lines that it shows."""
    said: list[str] = []
    found = Following(
        {"listed": open},
        opening=lambda first_step: opening(folder, first_step=first_step),
        say=said.append,
        redact=redactor(os.environ),
    )
    found.started(first_step=1, num_steps=3)
    return found, said


def test_a_tracker_is_told_every_number_that_there_is() -> None:
    assert values_of(METRICS) == {
        "train/loss": 5.0,
        "train/grad_norm": 1.5,
        "train/learning_rate": 1e-3,
        "train/tokens": 512.0,
        "train/labels": 500.0,
        "throughput/tokens_per_second": 1000.0,
        "throughput/tokens_per_second_per_device": 250.0,
        "throughput/mfu": 0.4,
        "memory/process_bytes": 2.0**20,
        "time/step": 0.5,
        "time/forward": 0.2,
        "eval/held_out/loss": 4.5,
    }


def test_a_tracker_gets_the_numbers_of_each_source() -> None:
    web = SourceMetrics("web", tokens=512, labels=500, loss=4.5, epoch=1.5)
    rare = SourceMetrics("rare", tokens=0, labels=0, loss=None, epoch=0.0)
    found = values_of(replace(METRICS, epoch=0.5, sources=(web, rare)))
    assert {name: value for name, value in found.items() if "epoch" in name or "source" in name} == {
        "train/epoch": 0.5,
        "source/web/loss": 4.5,
        "source/web/labels": 500.0,
        "source/web/tokens": 512.0,
        "source/web/epoch": 1.5,
        "source/rare/labels": 0.0,
        "source/rare/tokens": 0.0,
        "source/rare/epoch": 0.0,
    }


def test_all_steps_arrive_before_a_run_ends(tmp_path: Path) -> None:
    tracker = Listed()
    found, said = follow(tmp_path, lambda _: tracker)
    for _ in range(3):
        found.stepped(METRICS)
    found.close(is_done=True)
    assert [step for step, _ in tracker.told] == [1, 1, 1]
    assert (tracker.finished, said) == ([True], [])


def test_a_failing_tracker_is_warned_of_once_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "s3cret")
    found, said = follow(tmp_path, lambda _: Broken())
    found.stepped(METRICS)
    wait_until(lambda: found.followers[0].num_failures == 1, "the tracker")
    for _ in range(2):
        found.stepped(METRICS)
    found.close(is_done=True)
    assert said == [
        "warning: listed failed, training continues: ConnectionError: no route to ***@host",
        "warning: listed: 3 calls failed",
    ]


def test_a_tracker_that_cannot_be_opened_is_not_opened_again(tmp_path: Path) -> None:
    def refuse(_: Opening) -> Listed:
        raise SystemExit("not logged in")

    found, said = follow(tmp_path, refuse)
    for _ in range(3):
        found.stepped(METRICS)
    found.close(is_done=True)
    assert said[-1] == "warning: listed: 1 call failed, 3 steps dropped"
    assert "warning: listed failed, training continues: SystemExit: not logged in" in said


def test_a_stuck_tracker_holds_up_neither_steps_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "MAX_WAITING", 2)
    monkeypatch.setattr(following, "FINISH_SECONDS", 0.05)
    tracker = Stuck()
    found, said = follow(tmp_path, lambda _: tracker)
    began = time.monotonic()
    for _ in range(10):
        found.stepped(METRICS)
    found.close(is_done=True)
    tracker.let_go.set()
    assert is_within(time.monotonic() - began, 5)
    assert "it did not finish within 0 s" in said[-1]
    assert "steps dropped" in said[-1]


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    tracker = TensorboardTracker(opening(tmp_path))
    for step in (1, 2):
        tracker.log({"train/loss": 5.0 / step}, step=step)
    tracker.finish(is_done=True)
    found = reading.EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    # The writer of today writes scalars as tensors.
    events = found.Tensors("train/loss")
    assert [(event.step, event.tensor_proto.float_val[0]) for event in events] == [(1, 5.0), (2, 2.5)]


def test_wandb_keeps_a_resumed_runs_id_and_shows_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    key = "0123456789abcdef" * 2 + "01234567"
    monkeypatch.setenv("WANDB_API_KEY", key)
    open_run = wandb_opener(Tracker(kind="wandb", mode="offline", project="tiny"))
    (tmp_path / "plan.json").write_text("{}")
    ids = []
    for first_step in (1, 3, 1):
        tracker = open_run(opening(tmp_path, first_step=first_step))
        tracker.log({"train/loss": 5.0}, step=first_step)
        tracker.finish(is_done=True)
        ids.append((tmp_path / "wandb.id").read_text())
    assert ids[0] == ids[1] != ids[2]
    assert len(list((tmp_path / "wandb").glob("offline-run-*"))) == 3
    assert len(list((tmp_path / "wandb").rglob("plan.json"))) == 3
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if key.encode() in path.read_bytes()] == []
