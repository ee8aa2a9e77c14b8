"""`planc checkpoint`: list, verify and compare checkpoints, and reject wrong usage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from planc.cli.main import main
from tests.checkpoints.sample import SHARDS, save_sample
from tests.patience import WAIT_SECONDS

SHARD = next(iter(SHARDS))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run's folder with steps 9 and 10, and what a save of step 8 left."""
    root = tmp_path / "run" / "checkpoints"
    root.mkdir(parents=True)
    for step in (9, 10):
        save_sample(root, step=step)
    (root / "step-8.tmp").mkdir()
    return root.parent


def as_json(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_ls_shows_steps_in_order_and_what_a_dead_save_left(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["checkpoint", "ls", str(run_dir), "--output-format=json"]) == 0
    found = as_json(capsys)
    assert [(row["step"], row["samples"], row["mesh"], row["state"]) for row in found] == [
        (9, 72, "dp_shard 2", "committed"),
        (10, 80, "dp_shard 2", "committed"),
        ("", "", "", "left by an interrupted save"),
    ]


def test_ls_shows_a_manifest_that_cannot_be_read(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run_dir / "checkpoints" / "step-9" / "manifest.json").write_text("{}", encoding="utf-8")
    assert main(["checkpoint", "ls", str(run_dir)]) == 0
    text = capsys.readouterr().out
    assert "damaged: " in text
    assert "committed" in text


def test_ls_shows_a_link_that_is_named_like_a_checkpoint(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_dir / "checkpoints" / "step-60").symlink_to("step-9")
    assert main(["checkpoint", "ls", str(run_dir), "--output-format=json"]) == 0
    assert as_json(capsys)[-1]["state"] == "not a checkpoint: symbolic link"


def test_ls_shows_that_a_file_is_gone(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run_dir / "checkpoints" / "step-9" / SHARD).unlink()
    assert main(["checkpoint", "ls", str(run_dir), "--output-format=json"]) == 0
    assert [row["state"].partition(":")[0] for row in as_json(capsys)][:2] == ["incomplete", "committed"]


def test_verify_reads_all_checkpoints_of_a_run(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "verify", str(run_dir)]) == 0
    assert capsys.readouterr().out.count("passed, every byte as saved") == 2


def test_a_step_that_is_not_there_is_answered_with_those_that_are(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["checkpoint", "verify", str(run_dir / "checkpoints" / "step-11")]) == 2
    assert "; found step-9, step-10" in capsys.readouterr().err


def test_verify_finds_one_flipped_bit(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run_dir / "checkpoints" / "step-10" / SHARD
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert main(["checkpoint", "verify", str(run_dir)]) == 1
    assert f"{SHARD}: its SHA-256 differs from the one that was saved" in capsys.readouterr().out


def test_diff_says_what_differs_and_leaves_out_the_rest(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [str(run_dir / "checkpoints" / f"step-{step}") for step in (9, 10)]
    assert main(["checkpoint", "diff", *steps, "--output-format=json"]) == 0
    found = as_json(capsys)
    assert found == {
        "differences": [
            {"name": "step", "before": "9", "after": "10"},
            {"name": "samples", "before": "72", "after": "80"},
        ],
        "values": None,
    }


def test_values_are_compared_bit_by_bit(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = [str(run_dir / "checkpoints" / f"step-{step}") for step in (9, 10)]
    assert main(["checkpoint", "diff", *steps, "--values", "--output-format=json"]) == 0
    [apart] = as_json(capsys)["values"]
    assert apart["name"] == "model.weight" and apart["largest"] > 0
    assert main(["checkpoint", "diff", steps[0], steps[0], "--values"]) == 0
    assert "1 bitwise equal, 0 different" in capsys.readouterr().out


def test_values_of_a_damaged_checkpoint_are_not_compared(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_dir / "checkpoints" / "step-10" / SHARD).write_bytes(b"")
    steps = [str(run_dir / "checkpoints" / f"step-{step}") for step in (9, 10)]
    assert main(["checkpoint", "diff", *steps, "--values"]) == 2
    assert "is damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ls", "absent"], "no checkpoint found in `absent`: pass a `step-N` directory or a run directory"),
        (["diff", "absent"], "planc checkpoint diff: error: the following arguments are required: NEW"),
        (["ls", "absent", "--values"], "planc checkpoint ls: error: unknown option `--values`"),
    ],
)
def test_wrong_use_is_said_in_words(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["checkpoint", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_looking_at_checkpoints_imports_no_torch(run_dir: Path) -> None:
    code = "import sys; from planc.cli.main import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    command = [sys.executable, "-c", code, "checkpoint", "verify", str(run_dir)]
    subprocess.run(command, check=True, capture_output=True, env=os.environ, timeout=WAIT_SECONDS)


@pytest.mark.parametrize("name", ["ls", "verify", "diff", "export", "convert"])
def test_every_subcommand_has_help_with_its_own_options(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["checkpoint", name, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: planc checkpoint {name} ")
    assert f"  planc checkpoint {name} runs/" in out
    assert ("--values" in out) is (name == "diff")
    assert ("--hf" in out) is (name == "export")
    assert ("--dcp" in out) is (name == "convert")


def test_a_quiet_verify_prints_problems_only(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "verify", str(run_dir), "-q"]) == 0
    assert capsys.readouterr().out == ""
    (run_dir / "checkpoints" / "step-9" / SHARD).unlink()
    assert main(["checkpoint", "verify", str(run_dir), "-q"]) == 1
    out = capsys.readouterr().out
    assert "step-9: 1 problem" in out and "step-10" not in out
