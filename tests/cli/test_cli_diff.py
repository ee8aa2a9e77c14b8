"""`planc diff`: where its two sides come from, and what it exits with."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from planc.cli.main import main
from planc.inventory.files import config_digest
from tests.plans import TINY, write_plan


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git repository with a committed plan, its models in the working tree alone."""
    folder = tmp_path / "repository"
    (folder / "plans").mkdir(parents=True)
    write_plan(folder / "plans", text=TINY)
    monkeypatch.chdir(folder)
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    for arguments in (["init", "-q"], ["add", "plans/x.plan"], [*identity, "commit", "-qm", "x"]):
        subprocess.run(["git", *arguments], check=True)
    return folder


def _out(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    return out, err


def test_revision_is_compared_with_the_working_tree(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_plan(repository / "plans", text=TINY, edits=[("steps = 10", "steps = 20")])
    assert main(["diff", "git:HEAD:plans/x.plan", "plans/x.plan"]) == 0
    out, _ = _out(capsys)
    assert "train.steps  10 -> 20  plans/x.plan:31" in out


def test_revision_path_can_start_at_the_current_folder(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository / "plans")
    assert main(["diff", "git:HEAD:./x.plan", "x.plan", "--exit-code"]) == 0
    assert "no semantic change" in _out(capsys)[0]


@pytest.mark.parametrize("folder", [".", "plans", "other"])
def test_one_plan_is_compared_with_its_last_commit(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    write_plan(repository / "plans", text=TINY, edits=[("steps = 10", "steps = 20")])
    (repository / "other").mkdir()
    monkeypatch.chdir(repository / folder)
    assert main(["diff", os.path.relpath(repository / "plans" / "x.plan")]) == 0
    assert "train.steps  10 -> 20" in _out(capsys)[0]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("plans", "is not a plan file"),
        ("git:HEAD:plans/x.plan", "is not a plan file"),
        ("plans/y.plan", "not in 'HEAD'"),
    ],
)
def test_one_plan_that_is_not_committed_is_a_usage_error(
    repository: Path, capsys: pytest.CaptureFixture[str], name: str, reason: str
) -> None:
    (repository / "plans" / "y.plan").write_text(TINY)
    assert main(["diff", name]) == 2
    assert reason in _out(capsys)[1]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("git:HEAD:plans/x.plan", "plans/x.plan"),
        ("git:HEAD:./plans/x.plan", "plans/x.plan"),
        ("git:HEAD~1:plans/x.plan", "git:HEAD:plans/x.plan"),
    ],
)
def test_what_a_plan_of_a_revision_includes_is_read_from_the_revision(
    repository: Path, capsys: pytest.CaptureFixture[str], old: str, new: str
) -> None:
    (repository / "plans" / "base").mkdir()
    base = repository / "plans" / "base" / "b.plan"
    base.write_text(TINY.replace('"models/', '"../models/').replace('"data/', '"../data/'))
    write_plan(repository / "plans", text='extends "base/b.plan"\n')
    _git("add", "plans/x.plan", "plans/base")
    _git("-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "-qm", "a base")
    base.unlink() if new.startswith("git:") else base.write_text(base.read_text().replace("= 10", "= 20"))
    assert main(["diff", old, new]) == 0
    out, _ = _out(capsys)
    assert ("no semantic change" if new.startswith("git:") else "train.steps  10 -> 20") in out


def _git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], check=True)


def test_the_model_of_a_revision_is_read_from_the_revision(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["diff", "git:HEAD:plans/x.plan", "plans/x.plan", "--exit-code"])
    assert "model models/tiny-llama is not in git at HEAD and is read as it is now" in _out(capsys)[0]
    model = repository / "plans" / "models" / "tiny-llama"
    content = {path.name: path.read_text() for path in model.iterdir()}
    model.parent.unlink()
    model.mkdir(parents=True)
    for name, text in content.items():
        (model / name).write_text(text)
    _git("add", "plans/models")
    _git("-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "-qm", "a model")
    digest = config_digest((model / "config.json").read_bytes())
    config = content["config.json"].replace("1e-05", "1e-06")
    (model / "config.json").write_text(config)
    inventory = content["inventory.json"].replace(digest, config_digest(config.encode()))
    (model / "inventory.json").write_text(inventory)
    assert main(["diff", "git:HEAD:plans/x.plan", "plans/x.plan", "--exit-code"]) == 1
    out = _out(capsys)[0]
    assert f"LlamaForCausalLM (config {digest[:12]}) -> LlamaForCausalLM (config " in out
    assert "as it is now" not in out
    _git("add", "plans/models")
    assert main(["diff", "git:HEAD:plans/x.plan", "git:HEAD:plans/x.plan", "--exit-code"]) == 0


def test_a_fault_in_the_model_of_a_revision_names_the_revision(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = repository / "plans" / "models"
    model.unlink()
    (model / "tiny-llama").mkdir(parents=True)
    (model / "tiny-llama" / "config.json").write_text("{")
    _git("add", "plans/models")
    _git("-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "-qm", "a model")
    assert main(["diff", "git:HEAD:plans/x.plan", "plans/x.plan"]) == 2
    err = _out(capsys)[1]
    assert "HEAD:plans/models/tiny-llama/config.json: not JSON" in err
    assert "planc-" not in err


@pytest.mark.parametrize(
    "name",
    [
        "git:HEAD",
        "git::plans/x.plan",
        "git:HEAD:",
        "git:HEAD:plans",
        "git:HEAD:none.plan",
        "git:none:plans/x.plan",
        "git:--output=x:y",
        "git:HEAD:../../x",
    ],
)
def test_revision_that_git_refuses_is_two(
    repository: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(["diff", name, "plans/x.plan"]) == 2
    assert "planc: error: " in _out(capsys)[1]


def test_outside_a_repository_git_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert main(["diff", "git:HEAD:x.plan", "x.plan"]) == 2
    assert "not a git repository" in _out(capsys)[1]


def test_artifact_equals_its_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = write_plan(tmp_path, text=TINY)
    (tmp_path / "deep").mkdir()
    artifact = tmp_path / "deep" / "x.json"
    assert main(["compile", str(plan), "-o", str(artifact)]) == 0
    assert main(["diff", str(plan), str(artifact), "--exit-code"]) == 0
    assert main(["diff", str(artifact), str(plan), "--set", "mesh.tp=4"]) == 0
    assert "kv heads per rank 2 -> 1" in _out(capsys)[0]


def test_artifact_without_its_model_is_compared_by_its_graph(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = write_plan(tmp_path, text=TINY)
    artifact = tmp_path / "x.json"
    assert main(["compile", str(plan), "-o", str(artifact)]) == 0
    away = tmp_path / "away"
    away.mkdir()
    assert main(["diff", str(artifact.rename(away / "x.json")), str(plan), "--set", "mesh.tp=4"]) == 0
    out, _ = _out(capsys)
    assert "30 modules resharded over tp" in out
    assert "kv heads" not in out


def test_damaged_artifact_is_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = write_plan(tmp_path, text=TINY)
    damaged = tmp_path / "x.json"
    damaged.write_text('{"format_version": 4}')
    assert main(["diff", str(plan), str(damaged)]) == 2
    assert "not a compiled plan" in _out(capsys)[1]


def test_settings_work_on_the_new_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = str(write_plan(tmp_path, text=TINY))
    assert main(["diff", plan, plan, "--set", "mesh.tp=4", "--output-format", "json"]) == 0
    document = json.loads(_out(capsys)[0])
    assert document["changes"][0]["name"] == "mesh.tp"
    assert (document["changes"][0]["old"], document["changes"][0]["new"]) == ("2", "4")


def test_environment_is_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TP_SIZE", "4")
    plan = str(write_plan(tmp_path, text=TINY))
    assert main(["diff", plan, plan]) == 0
    assert "world size 4 (unchanged)" in _out(capsys)[0]


def test_exit_code_tells_a_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = str(write_plan(tmp_path, text=TINY))
    assert main(["diff", plan, plan, "--exit-code"]) == 0
    assert main(["diff", plan, plan, "--set", "train.steps=20", "--exit-code"]) == 1
    assert main(["diff", plan, plan, "--set", "train.steps=20"]) == 0


def test_errors_of_the_new_plan_are_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = str(write_plan(tmp_path, text=TINY))
    assert main(["diff", plan, plan, "--set", "mesh.tp=8"]) == 1
    assert "[P402]" in _out(capsys)[0]
    assert main(["diff", plan, plan, "--set", "mesh.nope=8"]) == 1
    assert "P215" in _out(capsys)[1]


def test_sides_that_cannot_be_read_are_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = str(write_plan(tmp_path, text=TINY))
    assert main(["diff", plan, str(tmp_path / "none.plan")]) == 2
    assert "P100" in _out(capsys)[1]
    assert main(["diff", str(tmp_path), plan]) == 2
    assert "has no readable plan" in _out(capsys)[1]
