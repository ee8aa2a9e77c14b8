"""The plans that ship: clean, explained, listed, and of the models that ship."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from planc.api import check_plan
from planc.inventory.files import CONFIG_NAME, config_digest
from planc.inventory.load import INVENTORY_NAME
from planc.plan.spec import Plan
from planc.vocab import MeshDim
from tests.plan.canonical_table import purpose, readme
from tests.plans import PLANS, canonical_plans


@cache
def plans() -> tuple[Plan, ...]:
    return tuple(check_plan(path).plan or pytest.fail(path.name) for path in canonical_plans())


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("path", canonical_plans(), ids=lambda path: path.stem)
def test_a_canonical_plan_has_no_findings(path: Path) -> None:
    assert check_plan(path).diagnostics == ()


@pytest.mark.parametrize("path", canonical_plans(), ids=lambda path: path.stem)
def test_a_canonical_plan_says_what_it_is_for(path: Path) -> None:
    assert purpose(path).endswith(".")


@pytest.mark.slow
def test_the_table_of_plans(match_golden: Callable[[Path, str], None]) -> None:
    match_golden(PLANS / "README.md", readme())


def test_every_published_model_has_a_plan() -> None:
    used = {Path(plan.model.hf).name for plan in plans()}
    shipped = {folder.name for folder in (PLANS / "models").iterdir()}
    # The tiny ones are there for plans in tests.
    assert {name for name in shipped - used if not name.startswith("tiny-")} == set()


@pytest.mark.parametrize("folder", sorted((PLANS / "models").iterdir()), ids=lambda folder: folder.name)
def test_a_model_folder_holds_an_inventory_of_its_configuration(folder: Path) -> None:
    inventory = json.loads((folder / INVENTORY_NAME).read_bytes())
    assert inventory["config_digest"] == config_digest((folder / CONFIG_NAME).read_bytes())


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_there_are_meshes_of_every_number_of_dims(size: int) -> None:
    assert any(sum(plan.mesh.size(mesh_dim) > 1 for mesh_dim in MeshDim) == size for plan in plans())


@pytest.mark.slow
def test_every_rotation_has_a_plan() -> None:
    rotations = {plan.context_parallel.rotate.value for plan in plans() if plan.context_parallel}
    assert rotations == {"ring", "allgather", "ulysses"}
