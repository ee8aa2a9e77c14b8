"""`planc doctor` as a user runs it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from planc.api import check_plan
from planc.doctor.examine import report_schema
from planc.doctor.machine import read_storage
from planc.doctor.packages import PACKAGES
from planc.doctor.storage import storage_checks
from planc.outgoing import SECRET_VARIABLES
from planc.runtime.run_directory.obstacles import obstacles
from tests.doctor.environments import installed, python
from tests.plans import FULL, QUICKSTART, TINY, write_plan

QUIET = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def report(*arguments: str, **how: Any) -> tuple[int, dict[str, Any]]:
    """The exit code and the JSON of `planc doctor`."""
    done = python("-m", "planc", "doctor", *arguments, "--output-format", "json", **how)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.fixture(scope="module")
def full() -> dict[str, Any]:
    """The report on this machine, for a plan."""
    code, found = report(str(QUICKSTART), environment={**QUIET, "HF_TOKEN": "hf_SENTINEL"})
    assert code == 0, found["diagnostics"]
    return found


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("the system, since nccl runs on Linux", "os"),
        ("Python's floor", "python"),
        ("one floor of PyTorch, with its reason", "torch"),
        ("one floor of transformers, with its reason", "transformers"),
        ("safetensors as a declared dependency", "safetensors"),
        ("CUDA, cuDNN, NCCL and the driver, or that there is no CUDA", "torch build"),
        ("several devices, with names and memory", "CUDA devices"),
        ("gloo and nccl", "backends"),
        ("dtypes of the plan", "dtypes"),
        ("RANK, WORLD_SIZE and LOCAL_RANK", "launcher"),
        ("credentials, never shown", "HF_TOKEN"),
        ("the disk, for weights and checkpoints", "disk"),
        ("permission to write", "run folder"),
        ("whether all machines see the run's folder", "file system"),
        ("open files", "open files"),
        ("shared memory", "/dev/shm"),
        ("the clock", "clock"),
    ],
)
def test_what_the_environment_of_a_run_is_made_of_has_a_row(
    asked: str, name: str, full: dict[str, Any]
) -> None:
    (row,) = (check for check in full["checks"] if check["name"] == name)
    assert row["ok"], asked
    assert row["found"]


def test_every_package_has_its_range_and_the_reason(full: dict[str, Any]) -> None:
    rows = {check["name"]: check for check in full["checks"] if check["section"] == "packages"}
    assert rows.keys() == {"python", *(package.name for package in PACKAGES)}
    assert all(row["required"] and row["reason"] for row in rows.values())


def test_json_is_of_its_schema(full: dict[str, Any]) -> None:
    schema = report_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(full)
    assert full["backends"]["gloo"]
    assert not jsonschema.Draft202012Validator(schema).is_valid({**full, "surplus": 1})


def test_a_plan_says_what_it_needs_on_disk(full: dict[str, Any]) -> None:
    (disk,) = (check for check in full["checks"] if check["name"] == "disk")
    assert ": 2 checkpoints of " in disk["required"]


def test_secrets_are_never_shown(light: Path) -> None:
    environment = {
        "HF_TOKEN": "hf_SENTINEL",
        "WANDB_API_KEY": "SENTINEL",
        "HUGGING_FACE_HUB_TOKEN": "SENTINEL",
    }
    for output in ("text", "json"):
        arguments = ("-m", "planc", "doctor", "--output-format", output)
        done = python(*arguments, path=(light,), is_bare=True, environment=environment)
        assert "SENTINEL" not in done.stdout + done.stderr
        assert done.stdout.count("set, not shown") == 3


def test_each_secret_has_what_reads_it(light: Path) -> None:
    _, found = report(path=(light,), is_bare=True, environment=dict.fromkeys(SECRET_VARIABLES, "SENTINEL"))
    reasons = {check["name"]: check["reason"] for check in found["checks"]}
    assert "model.hf" in reasons["HF_TOKEN"]
    assert "HF_TOKEN" in reasons["HUGGING_FACE_HUB_TOKEN"]
    assert "tracker" in reasons["WANDB_API_KEY"]


def test_a_light_installation_is_fine_until_a_plan_is_to_run(light: Path) -> None:
    code, found = report(path=(light,), is_bare=True)
    assert code == 0
    assert found["backends"] == {"gloo": False, "nccl": False}
    (devices,) = (check for check in found["checks"] if check["name"] == "CUDA devices")
    assert devices["found"] == "unknown, because PyTorch is not installed"
    code, found = report(str(QUICKSTART), path=(light,), is_bare=True)
    assert code == 1
    assert {one["code"] for one in found["diagnostics"]} == {"P911"}
    assert all(one["help"] == "pip install 'planc[run]'" for one in found["diagnostics"])


def test_findings_point_at_what_was_observed_not_at_a_place_in_it(light: Path) -> None:
    done = python("-m", "planc", "doctor", str(QUICKSTART), path=(light,), is_bare=True)
    assert "--> torch\n" in done.stdout
    assert ":1:1" not in done.stdout


def test_old_releases_are_errors_with_what_is_found_and_required(tmp_path: Path, light: Path) -> None:
    records = installed(tmp_path / "records", lark="1.1.9", rich="99.0")
    code, found = report(path=(records, light), is_bare=True)
    assert code == 1
    old, new = found["diagnostics"]
    assert (old["code"], new["code"]) == ("P910", "P912")
    assert old["text"] == "planc needs lark 1.2 or newer, below 2, found 1.1.9: parses plans: strict LALR(1)"


def test_a_pytorch_that_cannot_be_imported_is_an_error(tmp_path: Path) -> None:
    broken = installed(tmp_path / "broken", torch="2.13.0")
    (broken / "torch.py").write_text("raise OSError('libcudart.so.12: cannot open shared object file')\n")
    code, found = report(path=(broken,))
    assert code == 1
    (problem,) = found["diagnostics"]
    assert problem["code"] == "P913"
    (row,) = (check for check in found["checks"] if check["name"] == "import torch")
    assert row["found"] == "OSError: libcudart.so.12: cannot open shared object file"


def test_a_plan_with_errors_is_refused_as_check_does(tmp_path: Path, light: Path) -> None:
    plan = write_plan(tmp_path, text=TINY, edits=[("steps = 10", "steps = 0")])
    done = python("-m", "planc", "doctor", str(plan), path=(light,), is_bare=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert "error[P206]" in done.stderr
    done = python("-m", "planc", "doctor", str(tmp_path / "no.plan"), path=(light,), is_bare=True)
    assert done.returncode == 2


def test_the_launch_of_this_process_is_held_against_the_plan(light: Path) -> None:
    environment = {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }
    done = python(
        "-m", "planc", "doctor", str(QUICKSTART), path=(light,), is_bare=True, environment=environment
    )
    assert done.returncode == 1
    assert "error[P301]" in done.stderr


@pytest.mark.slow
def test_a_disk_without_room_is_an_error_at_the_checkpoint_block(tmp_path: Path) -> None:
    text = TINY.replace("models/tiny-llama", "models/llama-3.1-405b").replace("param size: int = 2\n", "")
    text = text.replace("steps = 10", "steps = 100000")
    text = text.replace("size\n", "2\n")
    plan = write_plan(
        tmp_path, text=f"{text}\ncheckpoint {{\n  save_every = 1 steps\n  keep_last = 10000\n}}\n"
    )
    code, found = report(str(plan), "--run-dir", str(tmp_path / "run"), environment=QUIET)
    assert code == 1
    (problem,) = (one for one in found["diagnostics"] if one["code"] == "P923")
    assert problem["file"] == str(plan)
    assert "10_001 checkpoints of" in problem["text"]
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_an_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert read_storage(tmp_path / "run").refusal == "Permission denied"


def test_a_file_in_the_run_folders_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    assert read_storage(tmp_path / "run" / "deeper").refusal == "Not a directory"


def test_reading_a_folder_leaves_nothing_behind(tmp_path: Path) -> None:
    storage = read_storage(tmp_path / "a" / "b")
    assert storage.refusal is None
    assert storage.existing == tmp_path
    assert storage.free_bytes > 0
    assert list(tmp_path.iterdir()) == []


def test_what_blocks_a_runs_saves_is_an_error(tmp_path: Path) -> None:
    graph = check_plan(write_plan(tmp_path, text=FULL)).graph
    assert graph is not None
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "step-60").symlink_to(tmp_path)
    found = obstacles(tmp_path / "run", graph)
    checks = storage_checks(read_storage(tmp_path / "run"), needs=None, obstacles=found)
    [problem] = [problem for check in checks for problem in check.problems]
    assert problem.code.code == "P945"
    assert "step-60 is a symbolic link" in problem.primary.text
