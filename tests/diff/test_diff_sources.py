"""`planc diff` with a run's folder or a checkpoint as a side, and what it fails on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planc.cli.main import main
from planc.runtime.checkpoints.manifest import MANIFEST_NAME, Manifest, Progress
from tests.plans import TINY, write_plan


@pytest.fixture
def plan(tmp_path: Path) -> str:
    return str(write_plan(tmp_path, text=TINY))


@pytest.fixture
def run_folder(tmp_path: Path, plan: str) -> Path:
    """A run's folder as training leaves it, its plan compiled."""
    folder = tmp_path / "runs" / "x"
    folder.mkdir(parents=True)
    assert main(["compile", plan, "-o", str(folder / "plan.json")]) == 0
    return folder


def commit(run_folder: Path, *, step: int, plan_hash: str | None = None) -> Path:
    """An empty checkpoint, saved by the run's plan or by that of another hash."""
    stored = json.loads((run_folder / "plan.json").read_text())["plan_hash"]
    directory = run_folder / "checkpoints" / f"step-{step}"
    directory.mkdir(parents=True)
    manifest = Manifest(
        planc_version="0",
        torch_version="0",
        step=step,
        plan_hash=plan_hash or stored,
        model_digest="",
        mesh={},
        progress=Progress(step=step, samples_consumed=0, seed=0, data_fingerprint=""),
        tensors={},
        files={},
    )
    (directory / MANIFEST_NAME).write_text(manifest.model_dump_json())
    return directory


def heading(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[0]


def test_a_runs_folder_stands_for_its_plan(
    run_folder: Path, plan: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", str(run_folder), plan, "--exit-code"]) == 0
    assert f"{run_folder} -> {plan}" in heading(capsys)


def test_a_checkpoint_stands_for_the_plan_of_its_run(
    run_folder: Path, plan: str, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = commit(run_folder, step=5)
    assert main(["diff", str(checkpoint), plan, "--set", "mesh.tp=4"]) == 0
    out = capsys.readouterr().out
    assert "reshard on load" in out
    assert "MEMORY PER RANK" in out
    assert "saved by" not in out


def test_a_checkpoint_is_found_from_inside_its_run(
    run_folder: Path, plan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(run_folder, step=5)
    monkeypatch.chdir(run_folder / "checkpoints" / "step-5")
    assert main(["diff", ".", plan, "--exit-code"]) == 0


def test_a_checkpoint_that_another_plan_saved_says_so(
    run_folder: Path, plan: str, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = commit(run_folder, step=5, plan_hash="f" * 64)
    assert main(["diff", str(checkpoint), plan, "--output-format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["old"]["note"].startswith("saved by plan fffffff; ")
    assert main(["diff", str(checkpoint), plan]) == 0
    assert "saved by plan fffffff" in heading(capsys)


def test_a_damaged_checkpoint_is_two(run_folder: Path, plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    (commit(run_folder, step=5) / MANIFEST_NAME).write_text("{}")
    assert main(["diff", str(run_folder / "checkpoints" / "step-5"), plan]) == 2
    assert "planc: error: " in capsys.readouterr().err


def test_a_checkpoint_without_its_run_is_two(
    tmp_path: Path, run_folder: Path, plan: str, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = commit(run_folder, step=5)
    away = tmp_path / "away" / "step-5"
    away.parent.mkdir()
    checkpoint.rename(away)
    assert main(["diff", str(away), plan]) == 2
    assert "the checkpoint's run keeps no plan" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "group", "code"),
    [
        ("mesh.tp=4", "layout", 1),
        ("mesh.tp=4", "memory", 1),
        ("mesh.tp=4", "communication", 1),
        ("mesh.tp=4", "checkpoint", 0),
        ("mesh.dp_shard=4", "checkpoint", 1),
        ("mesh.dp_shard=4", "batch", 1),
        ("model.seed=1", "numerics", 1),
        ("model.seed=1", "layout", 0),
        ("train.steps=20", "run", 1),
        ("train.log_every=2 steps", "numerics", 0),
        ("train.log_every=2 steps", "expect", 0),
    ],
)
def test_fail_on_watches_one_group(plan: str, setting: str, group: str, code: int) -> None:
    assert main(["diff", plan, plan, "--set", setting, "--fail-on", group]) == code


def test_fail_on_can_be_repeated(plan: str) -> None:
    change = ["diff", plan, plan, "--set", "train.log_every=2 steps", "--fail-on"]
    assert main([*change, "layout"]) == 0
    assert main([*change, "layout", "--fail-on", "run"]) == 1


def test_fail_on_expect_watches_broken_expectations(tmp_path: Path) -> None:
    text = f"{TINY}\nexpect {{\n  peak_memory < 100 MiB\n}}\n"
    plan = str(write_plan(tmp_path, name="expects.plan", text=text))
    assert main(["diff", plan, plan, "--fail-on", "expect"]) == 0
    assert main(["diff", plan, plan, "--set", "data.micro_batch=512", "--fail-on", "expect"]) == 1


def test_memory_that_cannot_be_compared_is_not_taken_for_unchanged(
    tmp_path: Path, run_folder: Path, plan: str, capsys: pytest.CaptureFixture[str]
) -> None:
    away = (run_folder / "plan.json").rename(tmp_path / "runs" / "plan.json")
    change = ["diff", str(away), plan, "--set", "mesh.tp=4", "--fail-on"]
    assert main([*change, "checkpoint"]) == 0
    assert main([*change, "memory"]) == 2
    assert "--fail-on memory: not compared" in capsys.readouterr().err


def test_an_unknown_group_is_a_usage_error(plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", plan, plan, "--fail-on", "layouts"]) == 2
    assert "invalid choice: 'layouts'" in capsys.readouterr().err
