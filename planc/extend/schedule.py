"""Schedules: the learning rate as a share of its peak, at each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from planc.extend.kind import Kind, mark

SCHEDULE = Kind("schedule", "optimizer.schedule", passes=("step",), offers=("num_steps",))
Factor = TypeVar("Factor", bound=Callable[..., Any])


def schedule(name: str) -> Callable[[Factor], Factor]:
    """Register a schedule: `optimizer { schedule = NAME(argument = value) }`.

    A schedule is a function of the `step`, from 1, that returns what the peak learning rate of every group is
    multiplied by: a number of 0 at least. If it takes `num_steps`, that is the number of the run's steps. All
    other arguments get their values in the plan.

    Before the first step, planc tries that it depends on the step alone, in any order: a resumed run asks for
    later steps only.
    """
    return lambda target: mark(SCHEDULE, target, name)
