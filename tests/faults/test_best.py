"""The best checkpoint of an evaluation is never lost, at whatever call or instant a run dies."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from planc.runtime.checkpoint_format.manifest import Evaluated
from tests.checkpoints.sample import save_sample
from tests.faults.best import (
    BEST,
    DATA,
    LOSSES,
    NAME,
    NEW,
    PLANTED,
    WORLD_SIZE,
    WORSE,
    best_problem,
    best_row,
    prepare,
    save_best_traced,
)
from tests.faults.ranks import endings
from tests.faults.runs import NUM_STEPS, instant_rows
from tests.faults.runs import prepare as prepare_runs

EVALUATION = f"""data {{
  eval "{NAME}" {{ source = text("corpus.txt")
 every = 1 steps
 sequences = 10
 keep_best = 1 }}
"""
EDITS = (("data {", EVALUATION), ("lr = 0.001", "lr = 0.3"), ("keep_last = 2", "keep_last = 1"))
"""A rate at which the loss soon rises."""


def test_what_loses_or_misnames_the_best_would_be_found(tmp_path: Path) -> None:
    losses = LOSSES["an old best"]
    for step in (BEST, WORSE, NEW):
        save_sample(tmp_path, step=step, evaluated={NAME: Evaluated(data=DATA, step=step, loss=losses[step])})
    assert best_problem(tmp_path, losses) == ""
    assert "the manifests state {'held': 1}, but step-2" in best_problem(tmp_path, {**losses, WORSE: 0.5})
    (tmp_path / f"step-{BEST}" / "rank-00000.safetensors").write_bytes(b"")
    assert f"step-{BEST} has the lowest loss, and rank-00000" in best_problem(tmp_path, losses)
    shutil.rmtree(tmp_path / f"step-{BEST}")
    assert best_problem(tmp_path, losses) == f"step-{BEST} has the lowest loss, and is gone: there are [2, 3]"


@pytest.mark.slow
@pytest.mark.parametrize("which", LOSSES)
def test_a_save_that_keeps_the_best_is_killed_at_every_call(which: str, tmp_path: Path) -> None:
    row = best_row(tmp_path, which=which)
    assert len(row.injections) > 20
    assert list(row.problems()) == []


@pytest.mark.slow
@pytest.mark.parametrize("bug", PLANTED)
def test_a_bug_that_loses_the_best_is_found(bug: str, tmp_path: Path) -> None:
    losses = LOSSES["an old best"]
    scene = prepare(tmp_path, losses)
    root = scene.copy(tmp_path / "saved")
    found = endings(save_best_traced, WORLD_SIZE, root, losses, None, bug)
    assert [(ending.code, ending.error) for ending in found] == [(0, "")] * WORLD_SIZE
    assert f"step-{BEST} has the lowest loss, and is gone" in best_problem(root, losses)


@pytest.mark.slow
def test_runs_that_keep_the_best_are_killed_at_random_instants(tmp_path: Path) -> None:
    stage = prepare_runs(tmp_path / "stage", edits=EDITS)
    assert min(stage.losses, key=lambda step: stage.losses[step]) < NUM_STEPS - 1, stage.losses
    for row in instant_rows(tmp_path, stage=stage, num_instants=4):
        assert list(row.problems()) == []
