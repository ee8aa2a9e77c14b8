"""Runs whose saves take longer than their steps, on ranks that train meanwhile."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from planc.runtime.checkpoint_format.layout import committed_steps
from tests.faults import signals
from tests.faults.runs import (
    NUM_STEPS,
    SLOW_DISK,
    WORLD_SIZE,
    Stage,
    exactness_problem,
    require_done,
    run,
    said,
)

SAVED = re.compile(r"saved \S+/step-(\d+)(?: in ([\d.]+) s, of which training waited ([\d.]+) s[^\n]*)?\n")
SKIPPED = re.compile(r"step (\d+) is not saved: an earlier save is still under way\n")


@pytest.fixture(scope="module")
def waiting(stage_behind: Stage, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run on a slow disk, each of whose saves waits for the one before."""
    folder = tmp_path_factory.mktemp("waiting") / "run"
    plan = stage_behind.plans[WORLD_SIZE]
    require_done(run(plan, folder, world_size=WORLD_SIZE, setting=SLOW_DISK), folder)
    return folder


@pytest.mark.slow
def test_a_save_that_waits_for_the_one_before_leaves_none_out(waiting: Path) -> None:
    saved = [int(match[1]) for match in SAVED.finditer(said(waiting))]
    assert saved == list(range(1, NUM_STEPS + 1))


@pytest.mark.slow
def test_a_run_ends_with_its_last_step_committed_bit_for_bit(waiting: Path, stage: Stage) -> None:
    """As a run whose saves training waits for, on a quick disk."""
    assert exactness_problem(waiting, stage.undisturbed[WORLD_SIZE]) == ""
    assert committed_steps(waiting / "checkpoints") == (NUM_STEPS - 1, NUM_STEPS)


def test_each_save_behind_training_says_how_long_training_waited(waiting: Path) -> None:
    *behind, last = SAVED.finditer(said(waiting))
    assert all(0 <= float(match[3]) <= float(match[2]) for match in behind)
    assert last[2] is None, "nothing is trained behind the last"


@pytest.mark.slow
def test_a_save_is_skipped_on_all_ranks_while_one_is_under_way(
    stage_behind: Stage, stage: Stage, tmp_path: Path
) -> None:
    plan = stage_behind.plans[WORLD_SIZE]
    more = ("--set", "checkpoint.mode=async(when_busy = skip)", "--set", "checkpoint.keep_last=9")
    require_done(
        run(plan, tmp_path / "run", world_size=WORLD_SIZE, setting=SLOW_DISK, more=more), tmp_path / "run"
    )
    text = said(tmp_path / "run")
    saved, skipped = ([int(match[1]) for match in pattern.finditer(text)] for pattern in (SAVED, SKIPPED))
    assert sorted(saved + skipped) == list(range(1, NUM_STEPS + 1))
    assert skipped and saved[-1] == NUM_STEPS, "the last step is never skipped"
    assert committed_steps(tmp_path / "run" / "checkpoints") == tuple(saved)
    assert exactness_problem(tmp_path / "run", stage.undisturbed[WORLD_SIZE]) == ""


def test_a_run_that_saves_nothing_at_its_end_waits_for_what_is_under_way(
    stage_behind: Stage, tmp_path: Path
) -> None:
    plan = stage_behind.plans[1]
    settings = ("checkpoint.save_every=5 steps", "checkpoint.save_last=false")
    more = [word for setting in settings for word in ("--set", setting)]
    require_done(run(plan, tmp_path / "run", world_size=1, setting=SLOW_DISK, more=more), tmp_path / "run")
    assert committed_steps(tmp_path / "run" / "checkpoints") == (5,)


def test_a_run_that_is_told_to_end_waits_for_what_is_under_way_and_saves(
    stage_behind: Stage, stage: Stage, tmp_path: Path
) -> None:
    plan, folder = stage_behind.plans[WORLD_SIZE], tmp_path / "run"
    found = signals.run(
        plan, folder, world_size=WORLD_SIZE, told=signals.Told(("SIGTERM",), (1,), "forward", 3)
    )
    assert list(signals.preemption_problems(folder, found, steps=(3, 4))) == []
    require_done(run(plan, folder, world_size=WORLD_SIZE), folder)
    assert exactness_problem(folder, stage.undisturbed[WORLD_SIZE]) == ""
