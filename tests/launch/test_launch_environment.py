"""What a run refuses about its machine before the model is built: exit code, reason, remedy."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from planc.estimate.states import checkpoint_bytes
from planc.inventory.load import load_inventory
from planc.runtime.process import needs_shared_folder
from tests.doctor.environments import installed
from tests.launch.processes import start, without_torch, without_torchrun
from tests.parity.cases import Case, compile_case, make_workspace, plan_text
from tests.plans import TINY, write_plan

TWO_RANKS = Case("DP2", "", {"dp_shard": 2})
ONE_RANK = Case("1")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_workspace(tmp_path_factory.mktemp("environment") / "workspace", ("llama",))
    (folder / "two.plan").write_text(plan_text(TWO_RANKS, saves=True), encoding="utf-8")
    (folder / "one.plan").write_text(plan_text(ONE_RANK, saves=True), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("name", "version"), [("torch", "2.1.0"), ("transformers", "4.19.0"), ("transformers", "5.2.0")]
)
def test_a_release_below_the_floor_ends_the_run_before_it_is_imported(
    name: str, version: str, workspace: Path, no_torch: Path
) -> None:
    installed(no_torch, **{name: version})
    outcome = without_torch(str(workspace / "one.plan"), no_torch=no_torch)
    assert outcome.code == 2
    assert f"planc needs {name} " in outcome.stderr and f", found {version}: " in outcome.stderr
    assert f"[P910]\nhelp: pip install '{name}>=" in outcome.stderr


def test_an_interface_that_is_not_there_ends_the_run_before_torch(workspace: Path, no_torch: Path) -> None:
    environment = {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "GLOO_SOCKET_IFNAME": "nope0",
    }
    outcome = without_torch(str(workspace / "two.plan"), no_torch=no_torch, environment=environment)
    assert outcome.code == 2
    assert "this machine has no network interface nope0 [P915]\nhelp: use one of lo" in outcome.stderr


def test_a_local_rank_outside_its_machine_ends_the_run(workspace: Path, no_torch: Path) -> None:
    environment = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "2"}
    outcome = without_torch(str(workspace / "two.plan"), no_torch=no_torch, environment=environment)
    assert outcome.code == 2
    assert "LOCAL_RANK = 2 is outside LOCAL_WORLD_SIZE = 2" in outcome.stderr


def test_a_disk_without_room_ends_the_run_at_the_checkpoint_block(tmp_path: Path, no_torch: Path) -> None:
    text = TINY.replace("models/tiny-llama", "models/llama-3.1-405b").replace("steps = 10", "steps = 100000")
    text = text.replace("tp = 2", "tp = 1").replace("tensor_parallel on tp {\n  auto\n}\n", "")
    saves = "checkpoint {\n  save_every = 1 steps\n  keep_last = 10000\n}\n"
    plan = write_plan(tmp_path, text=f"{text}\n{saves}")
    folder = tmp_path / "run"
    arguments = (str(plan), "--set", "size=1", "--run-dir", str(folder))
    outcome = without_torch(*arguments, no_torch=no_torch)
    assert outcome.code == 4, outcome.stderr
    assert f"planc: error: {plan}:" in outcome.stderr
    assert "10_001 checkpoints of" in outcome.stderr
    assert "[P923]\nhelp: free some space" in outcome.stderr
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "status.json"]


def test_a_folder_that_cannot_be_written_ends_the_run_before_torch(
    workspace: Path, tmp_path: Path, no_torch: Path
) -> None:
    (tmp_path / "file").write_text("")
    arguments = (str(workspace / "one.plan"), "--run-dir", str(tmp_path / "file" / "run"))
    outcome = without_torch(*arguments, no_torch=no_torch)
    assert outcome.code == 4
    assert "file: Not a directory [P924]\nhelp: choose another directory with --run-dir" in outcome.stderr


def test_devices_that_are_asked_for_and_not_there_are_no_run_on_processors(workspace: Path) -> None:
    command = ("-m", "planc.run", str(workspace / "one.plan"))
    outcome = start(sys.executable, *command, environment={"CUDA_VISIBLE_DEVICES": "63"})
    assert outcome.code == 2
    assert "CUDA_VISIBLE_DEVICES names devices, but PyTorch sees no CUDA device" in outcome.stderr


@pytest.mark.slow
def test_ranks_with_different_run_folders_end_before_the_model_is_built(
    workspace: Path, tmp_path: Path
) -> None:
    command = (str(workspace / "two.plan"), "--run-dir")
    outcomes = without_torchrun(*((*command, str(tmp_path / f"run-{rank}")) for rank in range(2)))
    for outcome in outcomes:
        assert outcome.code == 4, outcome.stderr
        assert outcome.stderr.startswith("planc: error: rank 1 does not see what rank 0 writes into ")
        assert f"{tmp_path / 'run-0'} on " in outcome.stderr
        assert f": it has {tmp_path / 'run-1'} on " in outcome.stderr
        assert "help: give every rank the same --run-dir" in outcome.stderr
        assert "model:" not in outcome.stdout
    assert sorted(path.name for path in (tmp_path / "run-0").iterdir()) == [".lock", "status.json"]
    assert json.loads((tmp_path / "run-0" / "status.json").read_text())["exit_code"] == 4
    assert not (tmp_path / "run-1").exists()


@pytest.mark.parametrize("saves", [True, False])
def test_only_a_plan_with_checkpoints_needs_a_shared_folder(saves: bool, workspace: Path) -> None:
    assert needs_shared_folder(compile_case(TWO_RANKS, workspace=workspace, saves=saves)) is saves


def test_a_checkpoint_takes_what_was_foreseen(workspace: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = ("-m", "planc.run", str(workspace / "one.plan"), "--run-dir", str(folder), "--stop-after", "3")
    outcome = start(sys.executable, *command)
    assert outcome.code == 0, outcome.stderr
    graph = compile_case(ONE_RANK, workspace=workspace, saves=True)
    inventory = load_inventory(workspace / "llama", cache_dir=tmp_path).inventory
    saved = sum(path.stat().st_size for path in folder.rglob("step-3/**/*") if path.is_file())
    foreseen = checkpoint_bytes(graph, inventory)
    assert foreseen <= saved <= foreseen + 100_000, "headers and a manifest come on top"
    assert not [path for path in folder.iterdir() if path.name.startswith(".shared-")]
