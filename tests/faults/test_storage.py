"""A full device, a quota, a broken disk, no descriptors, a folder that may not be written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from planc.runtime.checkpoint_format.layout import committed_steps
from tests.faults.inject import How
from tests.faults.kills import (
    NEW,
    OLD,
    WAYS,
    WORLD_SIZE,
    Scene,
    Way,
    error_faults,
    error_row,
    spread,
    storage_problem,
)
from tests.faults.ranks import endings
from tests.faults.runs import REFUSALS, REFUSALS_BEHIND, Stage, refused_row
from tests.faults.state import build, save_step

NOBODY = 65534


@pytest.mark.parametrize("way", WAYS)
def test_a_full_device_is_a_storage_error_on_every_rank(way: Way, scene: Scene, tmp_path: Path) -> None:
    faults = [fault for fault in error_faults(scene) if fault.how is How.FULL]
    assert len(faults) == 6, "each rank's shard and part, the plan and the manifest"
    assert list(error_row(tmp_path, scene=scene, faults=faults, way=way).problems()) == []


def test_errors_at_calls_spread_over_all_ranks(scene: Scene, tmp_path: Path) -> None:
    row = error_row(tmp_path, scene=scene, faults=spread(error_faults(scene), count=6))
    assert list(row.problems()) == []


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_errors_at_every_call_of_every_rank(way: Way, scene: Scene, tmp_path: Path) -> None:
    row = error_row(tmp_path, scene=scene, faults=tuple(error_faults(scene)), way=way)
    assert list(row.problems()) == []


def save_without_rights(rank: int, world_size: int, root: Path) -> None:
    state = build(world_size=world_size)
    # No mode keeps root from writing.
    if os.geteuid() == 0:
        os.seteuid(NOBODY)
    save_step(state, root=root, step=NEW, world_size=world_size, keep_last=1)


def test_a_read_only_folder_is_a_storage_error_on_every_rank(scene: Scene, tmp_path: Path) -> None:
    root = scene.copy(tmp_path / "checkpoints")
    for folder in (tmp_path, *tmp_path.parents):
        if folder.name.startswith("pytest-"):
            folder.chmod(0o755)
    root.chmod(0o555)
    before = sorted(os.listdir(root))
    assert storage_problem(endings(save_without_rights, WORLD_SIZE, root)) == ""
    assert (sorted(os.listdir(root)), committed_steps(root)) == (before, (OLD,))


@pytest.mark.parametrize(
    "name", [next(iter(REFUSALS)), *(pytest.param(one, marks=pytest.mark.slow) for one in list(REFUSALS)[1:])]
)
def test_a_run_ends_with_exit_4_and_goes_on_exactly(name: str, stage: Stage, tmp_path: Path) -> None:
    assert list(refused_row(tmp_path, stage=stage, names=[name]).problems()) == []


@pytest.mark.parametrize(
    "name", [REFUSALS_BEHIND[0], *(pytest.param(one, marks=pytest.mark.slow) for one in REFUSALS_BEHIND[1:])]
)
def test_a_refused_save_behind_training_ends_the_run_as_one_that_is_waited_for(
    name: str, stage_behind: Stage, tmp_path: Path
) -> None:
    assert list(refused_row(tmp_path, stage=stage_behind, names=[name]).problems()) == []
