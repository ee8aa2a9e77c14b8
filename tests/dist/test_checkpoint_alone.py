"""Checkpoints of one process without a process group: what is saved, refused, and never unpickled."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from planc.runtime.checkpoint_format.errors import (
    CheckpointError,
    CorruptCheckpointError,
)
from planc.runtime.checkpoint_format.layout import committed_steps, step_directory
from planc.runtime.checkpoint_format.manifest import Manifest
from planc.runtime.checkpoint_format.records import seal
from planc.runtime.torch.checkpoint import TrainingState, latest_step, load, save
from planc.runtime.torch.checkpoint.tensors import named_tensors
from tests.dist.checkpoint_state import (
    SINGLE,
    build,
    destination,
    digests,
    save_at,
    train_step,
)


@pytest.fixture
def single(tmp_path: Path) -> tuple[Path, TrainingState]:
    """A root with a checkpoint that one process saved without a process group, and its state."""
    state = build(SINGLE, seed=1)
    train_step(state, seed=0)
    save_at(state, root=tmp_path / "checkpoints", step=1, layout=SINGLE)
    return tmp_path / "checkpoints", state


def test_there_is_no_latest_step_before_the_first_save(tmp_path: Path) -> None:
    assert latest_step(tmp_path / "absent") is None


def test_only_the_last_checkpoints_are_kept(single: tuple[Path, TrainingState]) -> None:
    root, state = single
    for step in (2, 10):
        save(state, to=destination(root, step=step, keep_last=2))
    assert committed_steps(root) == (2, 10)


def test_every_misfit_is_named_at_once(single: tuple[Path, TrainingState]) -> None:
    root, _ = single
    narrow = build(SINGLE, seed=2, is_tied=True, hidden_size=16)
    narrow.model.register_buffer("extra", torch.zeros(2))
    with pytest.raises(CheckpointError, match="does not fit") as caught:
        load(narrow, directory=step_directory(root, step=1))
    lines = caught.value.message.splitlines()
    assert "model.extra is not in the checkpoint" in lines
    assert "model.lm_head.weight is not in this run" in lines
    assert (
        "model.model.embed_tokens.weight was saved as float32 [67, 32], but is float32 [67, 16] here" in lines
    )


def test_another_dtype_is_not_converted(single: tuple[Path, TrainingState]) -> None:
    root, _ = single
    half = build(SINGLE, seed=2)
    half.model.bfloat16()
    with pytest.raises(CheckpointError, match=r"was saved as float32 \[\d+.*\], but is bfloat16"):
        load(half, directory=step_directory(root, step=1))


def test_a_directory_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptCheckpointError, match=r"has no manifest\.json"):
        load(build(SINGLE, seed=2), directory=tmp_path)


def test_every_element_type_comes_back(tmp_path: Path) -> None:
    def model(fill: int) -> nn.Module:
        module = nn.Linear(2, 2).bfloat16()
        for dtype in (torch.bool, torch.uint8, torch.int64, torch.float64, torch.float16):
            module.register_buffer(str(dtype)[6:], torch.full((3,), fill).to(dtype))
        module.register_buffer("scratch", torch.full((3,), fill), persistent=False)
        return module

    states = [
        TrainingState(module, torch.optim.AdamW(module.parameters())) for module in (model(1), model(0))
    ]
    saved, loaded = states
    load(loaded, directory=save_at(saved, root=tmp_path, step=1, layout=SINGLE))
    for name, buffer in loaded.model.named_buffers():
        assert buffer.tolist() == [name != "scratch"] * 3
    for name, tensor in named_tensors(loaded).items():
        assert torch.equal(tensor, named_tensors(saved)[name])


def test_activation_checkpointing_does_not_rename(tmp_path: Path) -> None:
    model = nn.Sequential(checkpoint_wrapper(nn.Linear(2, 2, bias=False)))
    state = TrainingState(model, torch.optim.AdamW(model.parameters()))
    assert sorted(named_tensors(state)) == [
        "model.0.weight",
        "optimizer.0.weight.exp_avg",
        "optimizer.0.weight.exp_avg_sq",
        "optimizer.0.weight.step",
    ]


def test_a_dtype_that_files_do_not_have_is_refused(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("phase", torch.zeros(2, dtype=torch.complex64))
    state = TrainingState(model, torch.optim.AdamW(model.parameters()))
    with pytest.raises(CheckpointError, match=r"model\.phase is complex64"):
        save_at(state, root=tmp_path, step=1, layout=SINGLE)
    assert list(tmp_path.iterdir()) == []


class Payload:
    """Unpickling it makes a directory."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("name", ["manifest.json", "rank-00000.json", "rank-00000.safetensors"])
def test_a_pickle_in_place_of_a_file_never_runs(
    single: tuple[Path, TrainingState], tmp_path: Path, name: str
) -> None:
    directory = step_directory(single[0], step=1)
    payload = pickle.dumps(Payload(tmp_path / "marker"))
    (directory / ".metadata").write_bytes(payload)
    manifest = json.loads((directory / "manifest.json").read_text())
    del manifest["sha256"]
    if name == "rank-00000.json":
        manifest["parts"][0].update(size_bytes=len(payload), sha256=hashlib.sha256(payload).hexdigest())
    (directory / "manifest.json").write_text(seal(Manifest.model_validate_json(json.dumps(manifest))))
    (directory / name).write_bytes(payload)
    with pytest.raises(CorruptCheckpointError):
        load(build(SINGLE, seed=2), directory=directory)
    assert not (tmp_path / "marker").exists()
    pickle.loads(payload)
    assert (tmp_path / "marker").exists()


@pytest.fixture(scope="module")
def unpickled() -> Iterator[list[str]]:
    """Everything that unpickling looks up from now on. An audit hook stays, but only records when asked."""
    found: list[str] = []
    active = [True]

    def record(event: str, arguments: tuple[object, ...]) -> None:
        if event == "pickle.find_class" and active:
            found.append(str(arguments))

    sys.addaudithook(record)
    yield found
    active.clear()


def test_loading_unpickles_nothing(single: tuple[Path, TrainingState], unpickled: list[str]) -> None:
    root, state = single
    fresh = build(SINGLE, seed=2)
    unpickled.clear()
    load(fresh, directory=step_directory(root, step=1))
    assert unpickled == []
    assert digests(fresh) == digests(state)


def test_the_audit_hook_would_have_told(tmp_path: Path, unpickled: list[str]) -> None:
    torch.save({"step": torch.tensor(1)}, tmp_path / "state.pt")
    unpickled.clear()
    torch.load(tmp_path / "state.pt", weights_only=False)
    assert unpickled != []
