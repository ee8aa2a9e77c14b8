"""The folder in which every command runs, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.platforms.commands import world


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a `world` in it, and the cache of inventories that its commands have filled."""
    folder = tmp_path_factory.mktemp("platforms")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLANC_CACHE", str(folder / "cache"))
        world(folder / "world")
    return folder
