"""What several suites of launches need."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run without --run-dir leaves its status below the directory that it was started in."""
    folder = tmp_path / "started in"
    folder.mkdir()
    monkeypatch.chdir(folder)


@pytest.fixture
def no_torch(tmp_path: Path) -> Path:
    """A folder whose `torch` refuses to be imported."""
    folder = tmp_path / "no_torch"
    folder.mkdir()
    (folder / "torch.py").write_text("raise SystemExit('torch was imported')\n")
    return folder
