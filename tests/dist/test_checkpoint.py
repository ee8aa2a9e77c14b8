"""What one mesh saves, every mesh loads bit for bit; whatever fails, fails on every rank."""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from planc.runtime.checkpoint_format import part_files
from planc.runtime.checkpoint_format.errors import (
    CheckpointError,
)
from planc.runtime.checkpoint_format.layout import latest, step_directory
from planc.runtime.checkpoint_format.part import shard_name
from planc.runtime.checkpoint_format.verify import read_manifest, verify
from planc.runtime.torch.checkpoint import TrainingState, chunks, latest_step, load, plan_save, save
from planc.runtime.torch.checkpoint.tensors import named_tensors
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
    destination,
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
    """What differently initialized models hold on each of the meshes after loading, in place or not."""
    found = []
    for layout in layouts:
        states = [build(layout, seed=2, is_tied=is_tied) for _ in range(2)]
        for state, in_place in zip(states, (False, True), strict=True):
            load(state, directory=step_directory(root, step=1), in_place=in_place)
        loaded = [digests(state) for state in states]
        assert loaded[0] == loaded[1]
        found.append(loaded[0])
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


@pytest.fixture(scope="module")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with a checkpoint that fsdp 2 x tp 2 saved, for tests of an untied model alone."""
    root = tmp_path_factory.mktemp("untied")
    run_ranks(save_trained, 4, root, FSDP2_TP2, False)
    return root


@pytest.mark.sampled(every=2)
def test_four_ranks_load_it_on_any_mesh(trained: tuple[Path, Digests]) -> None:
    root, expected = trained
    is_tied = "model.lm_head.weight" not in expected
    layouts = (FSDP2_TP2, FSDP4, TP4, HSDP, REPLICATED_TP2)
    for per_layout in run_ranks(load_into, 4, root, layouts, is_tied):
        for layout, found in zip(layouts, per_layout, strict=True):
            assert found == expected, layout


@pytest.mark.slow
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


def load_and_save(rank: int, world_size: int, source: Path, target: Path, layout: Layout) -> Digests:
    """What another mesh loads and saves again."""
    state = build(layout, seed=2)
    load(state, directory=step_directory(source, step=1))
    save_at(state, root=target, step=1, layout=layout)
    return digests(state)


@pytest.mark.slow
def test_from_four_ranks_to_two_to_one_and_back(tmp_path: Path) -> None:
    roots = [tmp_path / name for name in ("four", "two", "one")]
    expected = run_ranks(save_trained, 4, roots[0], FSDP2_TP2, False)[0]
    assert run_ranks(load_and_save, 2, roots[0], roots[1], TP2) == [expected] * 2
    assert load_and_save(0, 1, roots[1], roots[2], SINGLE) == expected
    for root in roots:
        assert verify(step_directory(root, step=1)) == ()
        assert run_ranks(load_into, 4, root, (FSDP2_TP2, HSDP), False) == [[expected] * 2] * 4


def read_counted(
    rank: int, world_size: int, root: Path, layout: Layout, in_place: bool = False
) -> tuple[set[str], list[int], int]:
    """The files that a rank opens while it loads, the bytes of each chunk that it hashes, and the number of
    files that it opens after that, to copy from."""
    opened: set[str] = set()
    hashed: list[int] = []
    mapped: list[str] = []
    real_open, real_hash, real_into = os.open, part_files.sha256_of, part_files.sha256_into
    real_map = chunks.open_beneath

    def open_counted(path: Any, *arguments: Any, **options: Any) -> int:
        opened.add(Path(path).name)
        return real_open(path, *arguments, **options)

    def hash_counted(stream: Any, num_bytes: int, *, buffer: bytearray) -> str | None:
        hashed.append(num_bytes)
        return real_hash(stream, num_bytes, buffer=buffer)

    def read_counted(stream: Any, view: memoryview) -> str | None:
        hashed.append(len(view))
        return real_into(stream, view)

    def map_counted(directory: Path, *, name: str) -> Any:
        mapped.append(name)
        return real_map(directory, name=name)

    state = build(layout, seed=2)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "open", open_counted)
        patched.setattr(part_files, "sha256_of", hash_counted)
        patched.setattr(part_files, "sha256_into", read_counted)
        patched.setattr(chunks, "open_beneath", map_counted)
        load(state, directory=step_directory(root, step=1), in_place=in_place)
    return {name for name in opened if name.startswith("rank-")}, hashed, len(mapped)


def test_on_the_same_mesh_a_rank_reads_its_own_part(untied: Path) -> None:
    for rank, (opened, _, _) in enumerate(run_ranks(read_counted, 4, untied, FSDP2_TP2)):
        own = {f"rank-{rank:05}.json", f"rank-{rank:05}.safetensors"}
        # The first rank of those that hold the same has written it: norms, and the counts of steps.
        others = {f"rank-{other:05}.safetensors" for other in (0, rank - rank % 2)}
        assert opened - own <= others
        assert {name for name in opened if name.endswith(".json")} == {f"rank-{rank:05}.json"}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("world_size", "layout"), [(4, FSDP4), (2, TP2), (1, SINGLE)])
def test_all_ranks_together_hash_every_byte_once(
    world_size: int, layout: Layout, in_place: bool, tmp_path: Path
) -> None:
    run_ranks(save_trained, 2, tmp_path, TP2, False)
    manifest = read_manifest(step_directory(tmp_path, step=1))
    num_bytes = 4 * sum(math.prod(tensor.shape) for tensor in manifest.tensors.values())
    if world_size == 1:
        found = [read_counted(0, 1, tmp_path, layout, in_place)]
    else:
        found = run_ranks(read_counted, world_size, tmp_path, layout, in_place)
    assert sum(sum(hashed) for _, hashed, _ in found) == num_bytes
    assert all(hashed for _, hashed, _ in found)
    if world_size == 1:
        assert found[0][2] == (0 if in_place else 2), "what is hashed in place is not read again"


def save_by_one_plan(rank: int, world_size: int, root: Path) -> list[Digests]:
    """What steps 1 and 2 hold, saved by one plan, and what loads from each."""
    state, found = build(FSDP2_TP2, seed=1), []
    plan = plan_save(named_tensors(state), packings={})
    for step in (1, 2):
        train_step(state, seed=rank + step)
        save(state, to=destination(root, step=step), plan=plan)
        found.append(digests(state))
    for step in (1, 2):
        loaded = build(FSDP2_TP2, seed=2)
        load(loaded, directory=step_directory(root, step=step))
        found.append(digests(loaded))
    return found


@pytest.mark.slow
def test_a_plan_serves_every_save(tmp_path: Path) -> None:
    for first, second, *loaded in run_ranks(save_by_one_plan, 4, tmp_path):
        assert first != second
        assert loaded == [first, second]
    steps = [read_manifest(step_directory(tmp_path, step=step)) for step in (1, 2)]
    assert steps[0].contents == steps[1].contents


def save_other_tensors(rank: int, world_size: int, root: Path) -> tuple[str, list[str]]:
    state = build(TP2, seed=1)
    plan = plan_save(named_tensors(state), packings={})
    if rank == 1:
        state.model.register_buffer("extra", torch.zeros(2))
    try:
        save(state, to=destination(root, step=1), plan=plan)
    except RuntimeError as error:
        return str(error), [path.name for path in root.iterdir()]
    return "", []


def test_a_plan_of_other_tensors_fails_on_every_rank(tmp_path: Path) -> None:
    for message, _ in run_ranks(save_other_tensors, 2, tmp_path):
        assert message.startswith("rank 1: ")
        assert "the tensors are not those that the plan was made for" in message
    assert latest(tmp_path) is None


def plan_different_tensors(rank: int, world_size: int) -> tuple[str, str]:
    state = build(TP2, seed=1)
    if rank == 1:
        state.model.register_buffer("extra", torch.zeros(2))
    return outcome(lambda: plan_save(named_tensors(state), packings={}))


def test_ranks_that_hold_different_tensors_make_no_plan() -> None:
    for kind, message in run_ranks(plan_different_tensors, 2):
        assert kind == "CheckpointError"
        assert "rank 1 holds other tensors than rank 0" in message


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
        again = outcome(lambda: load(build(FSDP2_TP2, seed=2), directory=directory, in_place=True))
        assert again == (kind, message)
        dist.barrier()
        if rank == 0:
            flip_byte(directory / name)
    return found


def flip_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_a_flipped_byte_stops_every_rank_before_a_tensor_is_used(untied: Path) -> None:
    for per_file in run_ranks(load_damaged, 4, untied):
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
