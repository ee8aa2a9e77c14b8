"""`planc diff` with a run's folder or a checkpoint as a side, and what it fails on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from planc.api import check_plan
from planc.cli.main import main
from planc.graph.artifact import base_between, dump
from planc.graph.graph import plan_hash
from planc.runtime.checkpoint_format.manifest import MANIFEST_NAME, Contents, Manifest, Progress
from planc.runtime.checkpoint_format.records import seal
from planc.runtime.run_directory.directory import RunDirectory
from planc.source import SourceFile
from tests.plans import TINY, write_plan


@pytest.fixture
def plan(tmp_path: Path) -> str:
    return str(write_plan(tmp_path, text=TINY))


@pytest.fixture
def run_folder(tmp_path: Path, plan: str) -> Path:
    """A run's folder as training leaves it."""
    return start(tmp_path / "runs" / "x", plan)


def start(run_folder: Path, plan: str, *settings: str) -> Path:
    """The run's folder, in which a run of the plan has started."""
    sources = [SourceFile(f"--set {setting}", setting) for setting in settings]
    graph = check_plan(Path(plan), settings=sources).graph
    assert graph is not None

    def artifact(folder: Path) -> str:
        base = base_between(folder, plan_folder=Path(plan).parent)
        return dump(graph, sources=(), overrides=settings, base=base)

    RunDirectory(run_folder).prepare(artifact, plan_hash=plan_hash(graph))
    return run_folder


def commit(run_folder: Path, *, step: int) -> Path:
    """An empty checkpoint, saved by the run's plan."""
    stored = json.loads((run_folder / "plan.json").read_text())["plan_hash"]
    directory = run_folder / "checkpoints" / f"step-{step}"
    directory.mkdir(parents=True)
    manifest = Manifest(
        planc_version="0",
        torch_version="0",
        step=step,
        plan_hash=stored,
        model_digest="",
        mesh={},
        progress=Progress(step=step, samples_consumed=0, seed=0, data_fingerprint=""),
        contents=Contents(grids=(), tensors={}),
        parts=(),
    )
    (directory / MANIFEST_NAME).write_text(seal(manifest))
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


def test_a_checkpoint_is_found_from_inside_its_run(
    run_folder: Path, plan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(run_folder, step=5)
    monkeypatch.chdir(run_folder / "checkpoints" / "step-5")
    assert main(["diff", ".", plan, "--exit-code"]) == 0


def test_a_checkpoint_stands_for_the_plan_that_saved_it_after_another_went_on(
    run_folder: Path, plan: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first = commit(run_folder, step=5)
    start(run_folder, plan, "mesh.tp=1")
    second = commit(run_folder, step=6)
    assert main(["diff", str(first), plan, "--exit-code"]) == 0
    assert main(["diff", str(second), plan, "--exit-code"]) == 1
    capsys.readouterr()
    assert main(["diff", str(first), str(second)]) == 0
    assert "~ mesh.tp 2 -> 1 " in " ".join(capsys.readouterr().out.split())


def test_a_checkpoint_of_a_plan_that_its_run_has_lost_is_two(
    run_folder: Path, plan: str, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = commit(run_folder, step=5)
    shutil.rmtree(run_folder / "plans")
    assert main(["diff", str(checkpoint), plan]) == 2
    assert "the plan that saved it is not kept here" in capsys.readouterr().err


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
    assert "the plan that saved it is not kept here" in capsys.readouterr().err


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


CHECKPOINT = "\ncheckpoint {\n  save_every = 1 steps\n}\n"


@pytest.mark.parametrize(
    ("setting", "code", "line"),
    [
        ("mesh.tp=4", 0, "resume: continues"),
        ("optimizer.kind.lr=2e-3", 1, "help: restore the old value, pass --allow-change 'optimizer lr'"),
        ("model.seed=1", 1, "resume: refused: the checkpoint was trained with another model.seed: 0 -> 1"),
        ("checkpoint.resume=none", 1, "and the plan does not resume"),
    ],
)
def test_a_plan_that_would_not_resume_fails_on_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], setting: str, code: int, line: str
) -> None:
    saves = str(write_plan(tmp_path, text=TINY + CHECKPOINT))
    assert main(["diff", saves, saves, "--set", setting, "--fail-on", "checkpoint"]) == code
    assert line in capsys.readouterr().out


def test_plans_that_never_resume_have_no_verdict(
    tmp_path: Path, plan: str, capsys: pytest.CaptureFixture[str]
) -> None:
    never = CHECKPOINT.replace("{", "{\n  resume = none")
    saves = str(write_plan(tmp_path, name="never.plan", text=TINY + never))
    for one in (plan, saves):
        assert main(["diff", one, one, "--set", "optimizer.kind.lr=2e-3", "--fail-on", "checkpoint"]) == 0
    assert "resume:" not in capsys.readouterr().out


def test_fail_on_can_be_repeated(plan: str) -> None:
    change = ["diff", plan, plan, "--set", "train.log_every=2 steps", "--fail-on"]
    assert main([*change, "layout"]) == 0
    assert main([*change, "layout", "--fail-on", "run"]) == 1


def test_fail_on_expect_watches_broken_expectations(tmp_path: Path) -> None:
    text = f"{TINY}\nexpect {{\n  peak_memory < 100 MiB\n}}\n"
    plan = str(write_plan(tmp_path, name="expects.plan", text=text))
    assert main(["diff", plan, plan, "--fail-on", "expect"]) == 0
    assert main(["diff", plan, plan, "--set", "data.micro_batch=512", "--fail-on", "expect"]) == 1


@pytest.mark.parametrize(
    ("old", "new", "code", "line"),
    [
        ("peak_memory < 100 MiB", "", 1, "- peak_memory < 100 MiB x.plan:36"),
        ("peak_memory < 100 MiB", "peak_memory < 90 GiB", 1, "< 100 MiB -> < 90 GiB loosened y.plan:36"),
        ("peak_memory < 100 MiB", "peak_memory < 99 MiB", 1, "< 100 -> < 99 MiB tightened y.plan:36"),
        ("world_size >= 4", "world_size == 4", 1, "~ world_size >= 4 -> == 4 y.plan:36"),
        ("", "world_size == 4", 0, "+ world_size == 4 y.plan:36"),
    ],
)
def test_fail_on_expect_watches_the_expectations_themselves(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    old: str,
    new: str,
    code: int,
    line: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (("x.plan", old), ("y.plan", new)):
        write_plan(tmp_path, name=name, text=f"{TINY}\nexpect {{\n  dp_size == 2\n  {text}\n}}\n")
    assert main(["diff", "x.plan", "y.plan", "--fail-on", "expect"]) == code
    assert main(["diff", "x.plan", "y.plan", "--exit-code"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert f"EXPECT {line}" in out or ("EXPECT ~" in out and line in out)
    assert "no semantic change" not in out


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
    assert "unknown value `layouts`; did you mean `layout`?" in capsys.readouterr().err
