"""Which steps of a session run, and which of them at the same time."""

from __future__ import annotations

import time
from threading import Event

from tests.gpu.schedule import Capacity, fitting, makespan, ordered, run_side_by_side, with_needs
from tests.gpu.steps import Step
from tests.gpu.test_gpu_run import H100, step

ROOM = Capacity(gib=10, cores=4)


def test_steps_side_by_side_share_memory_and_cores() -> None:
    steps = [step("one", gib=6, seconds=30), step("two", gib=6, seconds=20), step("small", gib=4, seconds=10)]
    assert makespan(steps, H100, ROOM) == 50
    assert makespan(steps, H100, Capacity(gib=16, cores=4)) == 30
    assert makespan(steps, H100, Capacity(gib=16, cores=1)) == 60


def test_a_step_that_is_alone_comes_after_the_others() -> None:
    steps = [step("timing", is_alone=True, seconds=30), step("one", seconds=10), step("two", seconds=10)]
    assert makespan(steps, H100, ROOM) == 40


def test_the_first_steps_that_fit_are_taken() -> None:
    steps = [
        step("one", cores=4, seconds=30),
        step("two", cores=4, seconds=40),
        step("three", cores=4, seconds=20),
    ]
    taken, left = fitting(steps, H100, ROOM, seconds=60)
    assert [[one.name for one in some] for some in (taken, left)] == [["one", "three"], ["two"]]


def test_a_step_is_left_out_with_what_it_needs_and_with_its_preparation() -> None:
    steps = [
        step("prepared", seconds=10, is_preparation=True),
        step("timing", seconds=100, needs=("prepared",), is_alone=True),
        step("tuned", seconds=1, needs=("timing",)),
    ]
    taken, left = fitting(steps, H100, ROOM, seconds=60)
    assert taken == [] and {one.name for one in left} == {"prepared", "timing", "tuned"}


def test_a_chosen_step_comes_after_those_it_needs_that_left_no_files() -> None:
    steps = [step("reference"), step("case", needs=("reference",))]
    assert with_needs(steps[1:], steps, lambda _: False) == steps
    assert with_needs(steps[1:], steps, lambda _: True) == steps[1:]
    assert with_needs(steps[::-1], steps, lambda _: True) == steps


def test_named_steps_come_first() -> None:
    steps = [step("one"), step("two"), step("three")]
    assert [one.name for one in ordered(steps, ["three", "two"])] == ["three", "two", "one"]


def test_what_was_never_measured_comes_before_what_was() -> None:
    steps = [step("old"), step("new"), step("older"), step("newer")]
    found = ordered(steps, ["older"], measured={"old", "older"})
    assert [one.name for one in found] == ["older", "new", "newer", "old"]


def test_steps_run_side_by_side_but_after_those_they_need() -> None:
    steps = [step("case", needs=("reference",)), step("reference"), step("wide", cores=3)]
    running, seen = set[str](), []

    def run(one: Step) -> None:
        running.add(one.name)
        time.sleep(0.1)
        seen.append(frozenset(running))
        running.discard(one.name)

    names = [one.name for one, _ in run_side_by_side(steps, ROOM, run, Event())]
    assert names.index("reference") < names.index("case")
    assert {"reference", "wide"} in seen and all(sum(name == "wide" for name in some) <= 1 for some in seen)
