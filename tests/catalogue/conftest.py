from __future__ import annotations

from pathlib import Path

import pytest

from tests.catalogue.declared import HERE
from tests.plans import PLANS


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder from which plans reach the models that ship, and those of the catalogue."""
    folder = tmp_path_factory.mktemp("catalogue")
    (folder / "models").mkdir()
    for model in (*(PLANS / "models").iterdir(), *(HERE / "models").iterdir()):
        (folder / "models" / model.name).symlink_to(model)
    return folder
