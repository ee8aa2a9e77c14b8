"""What several suites of launches need."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def no_torch(tmp_path: Path) -> Path:
    """A folder whose `torch` refuses to be imported."""
    folder = tmp_path / "no_torch"
    folder.mkdir()
    (folder / "torch.py").write_text("raise SystemExit('torch was imported')\n")
    return folder
