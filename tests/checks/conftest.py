from __future__ import annotations

from pathlib import Path

import pytest
from variants import Check, write_models

from planc.api import Checked, check_source
from planc.source import SourceFile


@pytest.fixture(scope="session")
def plan_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models that plans of these tests name."""
    base = tmp_path_factory.mktemp("plans")
    write_models(base)
    return base


@pytest.fixture(scope="session")
def check(plan_base: Path) -> Check:
    """Checks a plan's text: `check(text, world_size=4, settings=("mesh.tp=2",))`."""

    def run(text: str, *, world_size: int | None = None, settings: tuple[str, ...] = ()) -> Checked:
        sources = [SourceFile(f"--set {setting}", setting) for setting in settings]
        return check_source(
            SourceFile("example.plan", text), base=plan_base, settings=sources, world_size=world_size
        )

    return run
