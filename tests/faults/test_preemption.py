"""A run that is asked to stop saves its current step, the same one on every rank, and resumes exactly."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from planc.graph.graph import Graph
from planc.runtime.checkpoint_format.layout import committed_steps
from planc.runtime.observer import Observer, Together
from planc.runtime.process import Launch
from planc.runtime.torch.agreement.stopping import Stopping
from planc.runtime.torch.run import Paths, Run
from tests.faults import signals
from tests.faults.runs import exactness_problem, said
from tests.faults.signals import PREEMPTED, Stage, Told, preemption_problems, run, status


@pytest.fixture(scope="module")
def told_stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return signals.prepare(tmp_path_factory.mktemp("told"))


@pytest.mark.parametrize(
    ("told", "steps"),
    [
        pytest.param(Told(("SIGTERM",), (1,), "forward"), (2,), marks=pytest.mark.slow),
        (Told(("SIGUSR1",), (0, 1), "backward"), (2,)),
        # After the step's notices have been summed, the next step is the last.
        pytest.param(Told(("SIGHUP",), (0,), "evaluate"), (3,), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_all_ranks_save_the_same_step_and_the_run_goes_on_exactly(
    told: Told, steps: tuple[int, ...], told_stage: Stage, tmp_path: Path
) -> None:
    plan, run_folder = told_stage.plans["dp"], tmp_path / "run"
    found = run(plan, run_folder, world_size=2, told=told)
    assert list(preemption_problems(run_folder, found, steps=steps)) == []
    assert [ending.code for ending in run(plan, run_folder, world_size=2)] == [0, 0]
    assert exactness_problem(run_folder, told_stage.undisturbed[2]) == ""


def test_ranks_that_share_one_loss_agree_too(told_stage: Stage, tmp_path: Path) -> None:
    told = Told(("SIGTERM",), (1,), "backward")
    found = run(told_stage.plans["tp"], tmp_path / "run", world_size=2, told=told)
    assert list(preemption_problems(tmp_path / "run", found, steps=(2,))) == []


def test_one_process_goes_on_exactly(told_stage: Stage, tmp_path: Path) -> None:
    plan, run_folder = told_stage.plans["one"], tmp_path / "run"
    found = run(plan, run_folder, world_size=1, told=Told(("SIGINT",), (0,), "backward"))
    assert list(preemption_problems(run_folder, found, steps=(2,))) == []
    assert "stopped by SIGINT; the same command resumes" in said(run_folder)
    [again] = run(plan, run_folder, world_size=1)
    assert again.code == 0
    assert exactness_problem(run_folder, told_stage.undisturbed[1]) == ""


def test_a_signal_in_the_last_save_changes_nothing(told_stage: Stage, tmp_path: Path) -> None:
    told = Told(("SIGTERM",), (0,), "checkpoint.save", step=6)
    [ending] = run(told_stage.plans["one"], tmp_path / "run", world_size=1, told=told)
    assert ending.code == 0
    assert status(tmp_path / "run")["state"] == "done"


@pytest.mark.parametrize("world_size", [1, 2])
def test_before_the_first_step_there_is_nothing_to_save(
    world_size: int, told_stage: Stage, tmp_path: Path
) -> None:
    plan = told_stage.plans["one" if world_size == 1 else "dp"]
    told = Told(("SIGTERM",), (0,), "data.open", step=0)
    found = run(plan, tmp_path / "run", world_size=world_size, told=told)
    assert [ending.code for ending in found] == [PREEMPTED] * world_size, said(tmp_path / "run")
    assert status(tmp_path / "run")["state"] == "preempted"
    assert status(tmp_path / "run")["step"] == 0
    assert committed_steps(tmp_path / "run" / "checkpoints") == ()


def test_a_plan_that_saves_nothing_says_so(told_stage: Stage, tmp_path: Path) -> None:
    run_folder = tmp_path / "run"
    [ending] = run(
        told_stage.plans["unsaved"], run_folder, world_size=1, told=Told(("SIGTERM",), (0,), "forward")
    )
    assert ending.code == PREEMPTED
    assert (status(run_folder)["step"], status(run_folder)["saved_step"]) == (2, None)
    assert "nothing is saved: the plan has no `checkpoint` block" in said(run_folder)


def test_a_second_interrupt_ends_at_once_and_names_the_step(told_stage: Stage, tmp_path: Path) -> None:
    run_folder = tmp_path / "run"
    told = Told(("SIGINT", "SIGINT"), (0,), "forward", step=3)
    [ending] = run(told_stage.plans["one"], run_folder, world_size=1, told=told)
    found = status(run_folder)
    assert ending.code == 130
    assert (found["exit_code"], found["step"], len(found["plan_hash"])) == (130, 2, 64)
    assert f"interrupted after step 2, which is not saved (plan_hash {found['plan_hash'][:12]})" in said(
        run_folder
    )


@pytest.mark.parametrize("names", [("SIGTERM", "SIGTERM"), ("SIGUSR1", "SIGTERM")], ids=" ".join)
def test_a_signal_that_torchrun_repeats_and_a_warning_before_it_are_one(
    names: tuple[str, ...], told_stage: Stage, tmp_path: Path
) -> None:
    told = Told(names, (0,), "forward")
    found = run(told_stage.plans["one"], tmp_path / "run", world_size=1, told=told)
    assert list(preemption_problems(tmp_path / "run", found, steps=(2,))) == []


@pytest.mark.slow
def test_every_signal_in_every_phase_is_survived(told_stage: Stage, tmp_path: Path) -> None:
    assert list(signals.told_row(tmp_path, stage=told_stage).problems()) == []


class Notes(Observer):
    """Keeps what is noted."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def noted(self, text: str) -> None:
        self.texts.append(text)


def test_a_save_longer_than_torchrun_waits_is_warned_of_once(tmp_path: Path) -> None:
    notes = Notes()
    graph = Graph("g", (), 1, (), (), ())
    paths = Paths(base=tmp_path, run=tmp_path)
    stopping = Stopping(Run(graph, "hash", Launch(), paths, Together(notes), torch.device("cpu")))
    for seconds in (29.0, 41.0, 42.0):
        stopping.warn_of_grace(seconds=seconds)
    assert len(notes.texts) == 1
    assert "a checkpoint takes 41 s" in notes.texts[0]
    assert "--shutdown-timeout 82" in notes.texts[0]
