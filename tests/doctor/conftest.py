"""An installation without PyTorch, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.environments import light_installation


@pytest.fixture(scope="session")
def light(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return light_installation(tmp_path_factory.mktemp("light") / "packages")
