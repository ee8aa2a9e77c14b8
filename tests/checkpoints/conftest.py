"""A committed checkpoint for every test that wants one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoints.sample import save_sample


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A committed checkpoint of step 3."""
    return save_sample(tmp_path / "checkpoints", step=3)
