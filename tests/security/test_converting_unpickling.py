"""No command unpickles anything, wherever payloads lie. For runs: `tests/faults/test_unpickling.py`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.checkpoints.plain_dcp import save_plainly
from tests.checkpoints.sample import save_sample
from tests.faults.corpus import payload
from tests.faults.test_unpickling import SCRIPT, unpickled
from tests.launch.processes import start
from tests.plans import PLANS, QUICKSTART


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A plan, its model and a run's checkpoint, with a payload wherever a loader might look for one."""
    shutil.copytree(PLANS / "models" / "tiny-llama", tmp_path / "models" / "tiny-llama")
    shutil.copy(QUICKSTART, tmp_path / "x.plan")
    save_sample(tmp_path / "run" / "checkpoints", step=3)
    for name in (
        *("models/tiny-llama/pytorch_model.bin", "models/tiny-llama/tokenizer.pkl"),
        *("models/tiny-llama/training_args.bin", "run/checkpoints/step-3/.metadata"),
        *("run/checkpoints/step-3/__0_0.distcp", "x.pkl"),
    ):
        (tmp_path / name).write_bytes(payload(tmp_path / "marker"))
    return tmp_path


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    "command",
    [
        ("check", "x.plan"),
        ("show", "x.plan"),
        ("estimate", "x.plan"),
        ("diff", "x.plan", "x.plan"),
        ("compile", "x.plan", "-o", "x.planc.json"),
        ("launch", "x.plan", "--nodes", "1"),
        ("checkpoint", "ls", "run"),
        ("checkpoint", "verify", "run"),
        ("checkpoint", "diff", "run", "run", "--values"),
    ],
    ids=" ".join,
)
def test_a_command_unpickles_nothing(
    command: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert unpickled(folder / "audit", *command) == []
    assert not (folder / "marker").exists()


@pytest.mark.slow
def test_plain_dcp_is_unpickled_in_another_process_only(tmp_path: Path) -> None:
    plain = save_plainly({"model": {"w": [1, 2]}}, tmp_path / "plain")
    audit = tmp_path / "audit"
    outcome = start(
        *(
            sys.executable,
            "-P",
            SCRIPT,
            "checkpoint",
            "convert",
            str(plain),
            "--planc",
            str(tmp_path / "root"),
        ),
        *("--unpickle", "--step", "1"),
        environment={"AUDIT": str(audit)},
    )
    assert outcome.code == 0, outcome.stderr
    assert not audit.exists(), audit.read_text(encoding="utf-8")
