"""Logging, tracking and profiling as ops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from planc.graph.ops import OpenLog, StartProfile, StopProfile, Tracker
from planc.plan.observing import TensorboardTracker, WandbTracker
from planc.plan.spec import Plan


def open_log(plan: Plan) -> Iterator[OpenLog]:
    """One op, if there is anything to open."""
    if plan.logging is not None and (plan.logging.per_rank or plan.logging.tracker):
        # By name: the order in a plan has no meaning.
        trackers = tuple(_tracker(one) for _, one in sorted(plan.logging.tracker.items()))
        yield OpenLog(per_rank=plan.logging.per_rank, trackers=trackers, span=plan.span("logging"))


def _tracker(tracker: TensorboardTracker | WandbTracker) -> Tracker:
    match tracker:
        case TensorboardTracker():
            return Tracker(kind="tensorboard")
        case WandbTracker(project=project, mode=mode, entity=entity, name=name):
            return Tracker(kind="wandb", mode=mode.value, project=project, entity=entity, name=name)
        case _:
            assert_never(tracker)


def start_profile(plan: Plan) -> Iterator[StartProfile]:
    """One op, if the plan requests a trace."""
    if (profile := plan.profile) is not None:
        yield StartProfile(
            first_step=profile.first_step,
            last_step=profile.last_step,
            memory=profile.memory,
            span=plan.span("profile"),
        )


def stop_profile(plan: Plan) -> Iterator[StopProfile]:
    """The op that ends the trace of `start_profile`."""
    if plan.profile is not None:
        yield StopProfile(last_step=plan.profile.last_step, span=plan.span("profile"))
