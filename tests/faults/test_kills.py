"""Ranks killed in a save, in a load, and in whole runs: one verified step is left, and training resumes."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from planc.runtime.checkpoint_format.verify import verify
from tests.faults.calls import Call
from tests.faults.corpus import edit_manifest
from tests.faults.judge import checkpoints_problem
from tests.faults.kills import WAYS, Scene, Way, kill_faults, kill_row, spread, trace
from tests.faults.power import file_digests
from tests.faults.resumes import resume_rows
from tests.faults.runs import Stage, branched, instant_rows
from tests.faults.state import expected, saved_root


def test_a_save_is_killed_at_calls_spread_over_all_ranks(scene: Scene, tmp_path: Path) -> None:
    row = kill_row(tmp_path, scene=scene, faults=spread(kill_faults(scene), count=8))
    assert list(row.problems()) == []


def test_a_save_behind_training_is_killed_at_calls_spread_over_all_ranks(
    scene: Scene, tmp_path: Path
) -> None:
    row = kill_row(tmp_path, scene=scene, faults=spread(kill_faults(scene), count=8), way="behind")
    assert list(row.problems()) == []


def test_a_save_behind_training_makes_the_calls_of_one_that_is_waited_for(
    scene: Scene, tmp_path: Path
) -> None:
    traced = trace(scene.copy(tmp_path / "traced"), way="behind")
    behind, waited = [[one.call for one in rank] for rank in traced], scene.calls
    assert [list(map(_shape, rank)) for rank in behind] == [list(map(_shape, rank)) for rank in waited]


def _shape(call: Call) -> tuple[str, str, int]:
    """What is equal in two folders; a folder's files are deleted in the system's order."""
    return call.kind, "" if call.kind == "unlink" else Path(call.path).name, len(call.data)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_save_is_killed_at_every_call_of_every_rank(way: Way, scene: Scene, tmp_path: Path) -> None:
    row = kill_row(tmp_path, scene=scene, faults=tuple(kill_faults(scene)), way=way)
    assert list(row.problems()) == []


def test_the_faults_reach_every_rank_and_every_kind_of_call(scene: Scene) -> None:
    assert [{call.kind for call in calls} for calls in scene.calls] == [
        {"create", "write", "fsync", "fsync directory", "mkdir", "rename", "unlink", "rmdir"},
        {"create", "write", "fsync"},
    ]


def test_a_mixture_of_two_steps_would_be_found(tmp_path: Path) -> None:
    root = saved_root(tmp_path / "root", steps=(1, 2))
    mixed = root / "step-2"
    shutil.copy(root / "step-1" / "rank-00001.safetensors", mixed)
    part = (root / "step-1" / "rank-00001.json").read_text().replace('"step":1', '"step":2')
    (mixed / "rank-00001.json").write_text(part)
    digest = hashlib.sha256(part.encode()).hexdigest()
    edit_manifest(mixed, lambda fields: fields["parts"][1].update(sha256=digest))
    assert verify(mixed) == ()
    problem = checkpoints_problem(root, known={step: expected(step) for step in (1, 2)})
    assert problem == "step-2 holds the values of steps that nobody saved"


@pytest.mark.parametrize("every", [30, pytest.param(1, marks=pytest.mark.slow)])
def test_a_load_is_killed(every: int, tmp_path: Path) -> None:
    for row in resume_rows(tmp_path, every=every):
        assert len(row.injections) >= 2
        assert list(row.problems()) == []


@pytest.mark.slow
@pytest.mark.parametrize("num_instants", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_runs_are_killed_at_random_instants(num_instants: int, stage: Stage, tmp_path: Path) -> None:
    for row in instant_rows(tmp_path, stage=stage, num_instants=num_instants):
        assert list(row.problems()) == []


@pytest.mark.slow
def test_runs_that_branch_are_killed_at_random_instants(stage: Stage, tmp_path: Path) -> None:
    """They start from the source again, or resume from their own checkpoint; the source stays as it is."""
    sources = [*(stage.begun / "checkpoints").iterdir()]
    before = [file_digests(source) for source in sources]
    for row in instant_rows(tmp_path, stage=branched(stage, tmp_path), num_instants=4):
        assert list(row.problems()) == []
    assert [file_digests(source) for source in sources] == before


@pytest.mark.slow
def test_runs_that_save_behind_training_are_killed_at_random_instants(
    stage_behind: Stage, tmp_path: Path
) -> None:
    for row in instant_rows(tmp_path, stage=stage_behind, num_instants=10):
        assert list(row.problems()) == []
