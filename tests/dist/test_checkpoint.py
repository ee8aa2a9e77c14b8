"""What one mesh saves, every mesh loads bit for bit; whatever fails, fails on every rank."""

from __future__ import annotations

import math
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from planc.runtime.checkpoint_format.errors import (
    CheckpointError,
)
from planc.runtime.checkpoint_format.layout import step_directory
from planc.runtime.checkpoint_format.part import shard_name
from planc.runtime.checkpoint_format.verify import read_manifest, verify
from planc.runtime.torch.checkpoint import TrainingState, latest_step, load
from planc.vocab import MeshDim
from tests.dist.checkpoint_state import (
    FSDP2_TP2,
    FSDP4,
    HSDP,
    REPLICATED_TP2,
    SINGLE,
    TP2,
    TP4,
    Digests,
    Layout,
    build,
    digests,
    progress_at,
    save_at,
    train_step,
)
from tests.dist.pool import run_ranks


def save_trained(rank: int, world_size: int, root: Path, layout: Layout, is_tied: bool) -> Digests:
    """A checkpoint of step 1 after one step of training."""
    state = build(layout, seed=1, is_tied=is_tied)
    train_step(state, seed=rank)
    save_at(state, root=root, step=1, layout=layout)
    return digests(state)


def load_into(
    rank: int, world_size: int, root: Path, layouts: tuple[Layout, ...], is_tied: bool
) -> list[Digests]:
    """What a differently initialized model holds on each of the meshes after loading."""
    found = []
    for layout in layouts:
        state = build(layout, seed=2, is_tied=is_tied)
        load(state, directory=step_directory(root, step=1))
        found.append(digests(state))
    return found


def outcome(function: Callable[[], object]) -> tuple[str, str]:
    """The kind and message of the CheckpointError that `function` raises."""
    try:
        function()
    except CheckpointError as error:
        return type(error).__name__, error.message
    return "none", ""


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Digests]:
    """A root with a checkpoint that fsdp 2 x tp 2 saved, and what it holds."""
    root = tmp_path_factory.mktemp("trained")
    per_rank = run_ranks(save_trained, 4, root, FSDP2_TP2, request.param)
    assert all(found == per_rank[0] for found in per_rank)
    return root, per_rank[0]


def test_four_ranks_load_it_on_any_mesh(trained: tuple[Path, Digests]) -> None:
    root, expected = trained
    is_tied = "model.lm_head.weight" not in expected
    layouts = (FSDP2_TP2, FSDP4, TP4, HSDP, REPLICATED_TP2)
    for per_layout in run_ranks(load_into, 4, root, layouts, is_tied):
        for layout, found in zip(layouts, per_layout, strict=True):
            assert found == expected, layout


def test_two_ranks_load_it(trained: tuple[Path, Digests]) -> None:
    root, expected = trained
    is_tied = "model.lm_head.weight" not in expected
    assert run_ranks(load_into, 2, root, (TP2,), is_tied) == [[expected], [expected]]


def test_one_process_loads_it(trained: tuple[Path, Digests]) -> None:
    root, expected = trained
    assert load_into(0, 1, root, (SINGLE,), "model.lm_head.weight" not in expected) == [expected]


def test_it_names_every_tensor_once(trained: tuple[Path, Digests]) -> None:
    root, expected = trained
    manifest = read_manifest(step_directory(root, step=1))
    parameters = {name.removeprefix("model.") for name in expected if name.startswith("model.")}
    assert set(manifest.tensors) == {f"model.{fqn}" for fqn in parameters} | {
        f"optimizer.{fqn}.{moment}" for fqn in parameters for moment in ("step", "exp_avg", "exp_avg_sq")
    }
    assert {"model.embed_tokens.weight", "model.layers.1.mlp.up_proj.weight"} <= parameters
    assert not any("inv_freq" in name for name in manifest.tensors)


def test_the_manifest_tells_where_the_run_stands(trained: tuple[Path, Digests]) -> None:
    manifest = read_manifest(step_directory(trained[0], step=1))
    assert (manifest.progress, manifest.mesh) == (progress_at(1), FSDP2_TP2)
    assert (manifest.plan_hash, manifest.model_digest) == ("plan", "model")


def resume_and_step(rank: int, world_size: int, root: Path) -> list[Digests]:
    """Two steps on end; and one step, a save, a load into another model, one step."""
    straight = build(FSDP2_TP2, seed=1)
    train_step(straight, seed=rank)
    save_at(straight, root=root, step=1, layout=FSDP2_TP2)
    resumed = build(FSDP2_TP2, seed=2)
    load(resumed, directory=step_directory(root, step=1))
    for state in (straight, resumed):
        train_step(state, seed=10 + rank)
    return [digests(straight), digests(resumed)]


def test_a_resumed_run_goes_on_exactly(tmp_path: Path) -> None:
    for straight, resumed in run_ranks(resume_and_step, 4, tmp_path):
        assert resumed == straight


def save_replicated(rank: int, world_size: int, root: Path) -> None:
    state = build(REPLICATED_TP2, seed=1)
    save_at(state, root=root, step=1, layout=REPLICATED_TP2)


def test_what_several_ranks_hold_is_written_once(tmp_path: Path) -> None:
    run_ranks(save_replicated, 4, tmp_path)
    directory = step_directory(tmp_path, step=1)
    assert verify(directory) == ()
    manifest = read_manifest(directory)
    num_elements = sum(math.prod(tensor.shape) for tensor in manifest.tensors.values())
    data_bytes = 0
    for rank in manifest.writing_ranks():
        data = (directory / shard_name(rank)).read_bytes()
        data_bytes += len(data) - 8 - int.from_bytes(data[:8], "little")
    assert data_bytes == 4 * num_elements


def save_and_load_short(rank: int, world_size: int, root: Path) -> bool:
    """A weight of 3 rows over 4 ranks: the last rank holds none."""
    layout = {MeshDim.DP_SHARD: 4}
    states = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        model = nn.Linear(2, 3, bias=False)
        fully_shard(model, mesh=init_device_mesh("cpu", (4,), mesh_dim_names=(MeshDim.DP_SHARD,)))
        states.append(TrainingState(model, torch.optim.AdamW(model.parameters())))
    saved, loaded = states
    load(loaded, directory=save_at(saved, root=root, step=1, layout=layout))
    return digests(saved) == digests(loaded)


def test_a_rank_with_an_empty_shard_saves_and_loads(tmp_path: Path) -> None:
    assert run_ranks(save_and_load_short, 4, tmp_path) == [True] * 4
    assert verify(step_directory(tmp_path, step=1)) == ()


def load_damaged(rank: int, world_size: int, root: Path) -> list[tuple[str, str, bool]]:
    """Per file with a flipped byte: the error, and whether any tensor has changed."""
    directory = step_directory(root, step=1)
    state = build(FSDP2_TP2, seed=2)
    before = digests(state)
    found = []
    for name in map(shard_name, read_manifest(directory).writing_ranks()):
        if rank == 0:
            flip_byte(directory / name)
        dist.barrier()
        kind, message = outcome(lambda: load(state, directory=directory))
        found.append((kind, message, digests(state) != before))
        dist.barrier()
        if rank == 0:
            flip_byte(directory / name)
    return found


def flip_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_a_flipped_byte_stops_every_rank_before_a_tensor_is_used(tmp_path: Path) -> None:
    run_ranks(save_trained, 4, tmp_path, FSDP2_TP2, False)
    for per_file in run_ranks(load_damaged, 4, tmp_path):
        assert len(per_file) == 4
        for index, (kind, message, has_changed) in enumerate(per_file):
            assert kind == "CorruptCheckpointError"
            assert f"rank-0000{index}.safetensors: its SHA-256" in message
            assert not has_changed


def save_where_it_fails(rank: int, world_size: int, directory: Path) -> list[tuple[str, str]]:
    """Outcomes: a root below a file; a step committed before; a disk that is full for rank 1 alone."""
    state = build(FSDP2_TP2, seed=1)
    root = directory / "checkpoints"

    def attempt(root: Path, step: int) -> tuple[str, str]:
        return outcome(lambda: save_at(state, root=root, step=step, layout=FSDP2_TP2))

    outcomes = [attempt(directory / "file" / "below", 1), attempt(root, 1), attempt(root, 1)]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    outcomes.append(attempt(root, 2))
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    return [*outcomes, attempt(root, 2)]


def test_a_save_that_fails_on_one_rank_fails_on_all(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    for outcomes in run_ranks(save_where_it_fails, 4, tmp_path):
        below_file, first, again, full, retried = outcomes
        assert below_file[0] == "CheckpointStorageError"
        assert "Not a directory" in below_file[1]
        assert first[0] == "none"
        assert again[0] == "CheckpointError"
        assert "never overwritten" in again[1]
        assert full[0] == "CheckpointStorageError"
        assert full[1].startswith("rank 1: cannot write")
        assert retried[0] == "none"
    # The failed step has left nothing, and its retry all.
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-1", "step-2"]
    assert verify(tmp_path / "checkpoints" / "step-2") == ()


def find_latest(rank: int, world_size: int, root: Path) -> int | None:
    # Each rank has its own directory: only what rank 0 sees counts.
    return latest_step(root / str(rank))


def test_all_ranks_agree_on_the_latest_step(tmp_path: Path) -> None:
    for rank, step in enumerate((10, 11)):
        (tmp_path / str(rank) / f"step-{step}").mkdir(parents=True)
    assert run_ranks(find_latest, 2, tmp_path) == [10, 10]
