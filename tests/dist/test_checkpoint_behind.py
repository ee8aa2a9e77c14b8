"""A save by a thread during training is the same as one that training waits for."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from planc.runtime.checkpoint_format.errors import CheckpointError
from planc.runtime.checkpoint_format.layout import committed_steps, step_directory
from planc.runtime.checkpoint_format.verify import read_manifest, verify
from planc.runtime.observer import WaitCause
from planc.runtime.torch.checkpoint import BackgroundSaves, TrainingState, save
from planc.runtime.torch.checkpoint import background as background_module
from planc.runtime.torch.checkpoint.background import Stage
from tests.dist.checkpoint_state import (
    FSDP2_TP2,
    HSDP,
    REPLICATED_TP2,
    SINGLE,
    Layout,
    build,
    destination,
    train_step,
)
from tests.dist.pool import run_ranks

TIMEOUT_SECONDS = 60.0


def background() -> BackgroundSaves:
    return BackgroundSaves(device=torch.device("cpu"), timeout_seconds=TIMEOUT_SECONDS)


def save_both_ways(rank: int, world_size: int, root: Path, layout: Layout) -> tuple[int, int]:
    """Steps 1 and 2, each saved while training waits and while it continues. Staged bytes after each."""
    state, saves, staged = build(layout, seed=1), background(), []
    for step in (1, 2):
        train_step(state, seed=step)
        save(state, to=destination(root / "waited", step=step, layout=layout))
        saves.start(state, to=destination(root / "behind", step=step, layout=layout))
        train_step(state, seed=99)
        while not saves.has_ended():
            time.sleep(0.001)
        saves.join()
        staged.append(saves.staged_bytes)
    return staged[0], staged[1]


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("layout", [HSDP, FSDP2_TP2, REPLICATED_TP2], ids=["hsdp", "fsdp-tp", "replicas-tp"])
def test_each_step_is_bit_for_bit_the_one_that_training_waited_for(layout: Layout, tmp_path: Path) -> None:
    run_ranks(save_both_ways, 4, tmp_path, layout)
    for step in (1, 2):
        behind, waited = (step_directory(tmp_path / name, step=step) for name in ("behind", "waited"))
        assert verify(behind) == ()
        assert read_manifest(behind) == read_manifest(waited)


def test_ranks_copy_one_checkpoint_together_however_many_replicas_there_are(tmp_path: Path) -> None:
    staged = run_ranks(save_both_ways, 4, tmp_path, REPLICATED_TP2)
    manifest = read_manifest(step_directory(tmp_path / "behind", step=2))
    # Headers alone are not copied.
    written = sum(part.shard_bytes for part in manifest.parts if part is not None)
    assert 0.9 * written < sum(first for first, _ in staged) < written
    assert all(first == second for first, second in staged), "the same memory for every save"


def test_a_process_without_a_group_saves_behind_training(tmp_path: Path) -> None:
    save_both_ways(0, 1, tmp_path, SINGLE)
    assert committed_steps(tmp_path / "behind") == (1, 2)


@pytest.fixture
def single() -> TrainingState:
    state = build(SINGLE, seed=1)
    train_step(state, seed=0)
    return state


def test_only_the_last_checkpoints_are_kept(single: TrainingState, tmp_path: Path) -> None:
    saves = background()
    for step in (1, 2, 3):
        saves.start(single, to=destination(tmp_path, step=step, keep_last=2))
        saves.join()
    assert committed_steps(tmp_path) == (2, 3)


def test_the_times_of_a_save_are_told(single: TrainingState, tmp_path: Path) -> None:
    saves = background()
    saves.start(single, to=destination(tmp_path, step=1))
    directory, times = saves.join()
    assert directory == step_directory(tmp_path, step=1)
    assert 0 < times.copied_seconds <= times.seconds and 0 < times.blocked_seconds <= times.seconds


class Held:
    """Holds a part of a save back until it is told: the copies, or the allocation of their memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, part: str = "_copy", *, fails: bool = False) -> None:
        self.go, original = threading.Event(), getattr(Stage, part)

        def held(stage: Stage, *arguments: Any) -> None:
            assert self.go.wait(TIMEOUT_SECONDS)
            if fails:
                raise CheckpointError(f"{part} failed", help="")
            original(stage, *arguments)

        monkeypatch.setattr(Stage, part, held)


@pytest.mark.parametrize(("part", "cause"), [("allocate", "memory"), ("_copy", "copies"), ("write", "end")])
def test_a_wait_is_counted_by_its_cause(
    single: TrainingState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, cause: WaitCause
) -> None:
    def slow(*arguments: Any, **named: Any) -> Any:
        time.sleep(0.3)
        return original(*arguments, **named)

    owner: Any = background_module if part == "write" else Stage
    original = getattr(owner, part)
    monkeypatch.setattr(owner, part, slow)
    saves = background()
    saves.start(single, to=destination(tmp_path, step=1))
    # Without a forward, which would pass some of the time.
    single.optimizer.step()
    waits = saves.join()[1].waits
    assert waits[cause] >= 0.2 and max(waits, key=lambda one: waits[one]) == cause


def test_memory_that_is_there_before_the_first_save_is_not_waited_for(
    single: TrainingState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, saves = Held(monkeypatch, "allocate"), background()
    saves.prepare(single)
    # Training's own thread goes on meanwhile.
    train_step(single, seed=1)
    held.go.set()
    while saves.staged_bytes == 0:
        time.sleep(0.001)
    saves.start(single, to=destination(tmp_path, step=1))
    train_step(single, seed=2)
    assert saves.join()[1].waits["memory"] < 0.1


def test_the_optimizer_alone_waits_for_copies(
    single: TrainingState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    single.model.register_buffer("count", torch.zeros(2))
    save(single, to=destination(tmp_path / "waited", step=1))
    held, saves = Held(monkeypatch), background()
    saves.start(single, to=destination(tmp_path / "behind", step=1))
    # The next forward changes buffers, and backward gradients.
    single.model.get_buffer("count").fill_(7)
    stepping = threading.Thread(target=train_step, args=(single,), kwargs={"seed": 1})
    stepping.start()
    stepping.join(0.2)
    assert stepping.is_alive(), "the step did not wait for the copies"
    held.go.set()
    stepping.join()
    assert saves.join()[1].waits["copies"] >= 0.1
    behind, waited = (step_directory(tmp_path / name, step=1) for name in ("behind", "waited"))
    assert read_manifest(behind) == read_manifest(waited)
    # No hook is left.
    train_step(single, seed=2)


@pytest.mark.parametrize("part", ["_copy", "allocate"])
def test_a_part_that_fails_lets_training_learn_of_it(
    single: TrainingState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    held, saves = Held(monkeypatch, part, fails=True), background()
    saves.start(single, to=destination(tmp_path, step=1))
    held.go.set()
    train_step(single, seed=1)
    with pytest.raises(CheckpointError, match=f"{part} failed"):
        saves.join()
    assert committed_steps(tmp_path) == ()


def test_a_step_that_is_there_already_is_refused_when_the_save_is_joined(
    single: TrainingState, tmp_path: Path
) -> None:
    saves = background()
    saves.start(single, to=destination(tmp_path, step=1))
    saves.join()
    saves.start(single, to=destination(tmp_path, step=1))
    with pytest.raises(CheckpointError, match="never overwritten"):
        saves.join()
    assert not saves.is_under_way
    assert verify(step_directory(tmp_path, step=1)) == ()


def test_a_tensor_that_cannot_be_saved_is_refused_before_anything_is_written(
    single: TrainingState, tmp_path: Path
) -> None:
    single.model.register_buffer("phase", torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(CheckpointError, match="is complex64"):
        background().start(single, to=destination(tmp_path / "root", step=1))
    assert not (tmp_path / "root").exists()
