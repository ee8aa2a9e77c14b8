from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

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
def check(plan_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Check:
    """Checks a plan's text: `check(text, world_size=4, settings=("mesh.tp=2",))`.

    `files` are texts by path, which the plan may include.
    """

    def run(
        text: str,
        *,
        world_size: int | None = None,
        settings: tuple[str, ...] = (),
        files: Mapping[str, str] = MappingProxyType({}),
    ) -> Checked:
        sources = [SourceFile(f"--set {setting}", setting) for setting in settings]
        base = _folder(files, tmp_path_factory, plan_base) if files else plan_base
        return check_source(
            SourceFile("example.plan", text), base=base, settings=sources, world_size=world_size
        )

    return run


def _folder(files: Mapping[str, str], factory: pytest.TempPathFactory, plan_base: Path) -> Path:
    """A new folder with the files, from which the models are reached."""
    folder = factory.mktemp("files")
    (folder / "models").symlink_to(plan_base / "models")
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder
