"""The models that are rehearsed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity.cases import make_workspace


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_workspace(tmp_path_factory.mktemp("rehearsal") / "workspace")
