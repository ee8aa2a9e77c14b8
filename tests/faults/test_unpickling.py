"""A run's saves, its resume and its export unpickle nothing from a file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.faults.corpus import payload
from tests.faults.runs import Stage
from tests.launch.processes import start

SCRIPT = str(Path(__file__).parent / "audited_run.py")


def unpickled(audit: Path, *arguments: str) -> list[str]:
    """What a command has unpickled, except messages between torch's ranks: one sends to itself, too."""
    outcome = start(
        sys.executable, "-P", SCRIPT, *arguments, environment={"AUDIT": str(audit), "HF_HUB_OFFLINE": "1"}
    )
    assert outcome.code == 0, outcome.stderr
    lines = audit.read_text(encoding="utf-8").splitlines() if audit.exists() else []
    return [line for line in lines if not line.startswith("ranks: ")]


@pytest.mark.slow
def test_save_resume_and_export_unpickle_no_file(stage: Stage, tmp_path: Path) -> None:
    audit, run_folder = tmp_path / "audit", tmp_path / "run"
    run = ("run", str(stage.plans[1]), "--run-dir", str(run_folder))
    assert unpickled(audit, *run, "--stop-after", "2") == []
    for step in (run_folder / "checkpoints").iterdir():
        (step / ".metadata").write_bytes(payload(tmp_path / "marker"))
    assert unpickled(audit, *run) == []
    exported = ("checkpoint", "export", str(run_folder), "--hf", str(tmp_path / "exported"))
    assert unpickled(audit, *exported) == []
    assert not (tmp_path / "marker").exists()


def test_a_resume_that_saves_unpickles_no_file(stage: Stage, tmp_path: Path) -> None:
    run_folder = stage.copy_begun(tmp_path / "run")
    for step in (run_folder / "checkpoints").iterdir():
        (step / ".metadata").write_bytes(payload(tmp_path / "marker"))
    found = unpickled(
        tmp_path / "audit", "run", str(stage.plans[1]), "--run-dir", str(run_folder), "--stop-after", "3"
    )
    assert found == []
    assert not (tmp_path / "marker").exists()
    assert (run_folder / "checkpoints" / "step-3").exists()


def test_the_audit_would_have_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(payload(tmp_path / "marker"))
    [line] = unpickled(tmp_path / "audit", "unpickle", str(tmp_path / "file"))
    assert "'mkdir'" in line
