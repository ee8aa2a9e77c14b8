"""Logs, profiles, metrics, callbacks and the `guard` block as ops: what watches a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from planc.graph import ops
from planc.lower.stated import stated
from planc.plan import observing
from planc.plan.bind import BoundPlan
from planc.plan.spec import Plan
from planc.plan.stages import ties_of_ends
from planc.source import Span
from planc.vocab import MeshDim


def open_log(plan: Plan) -> Iterator[ops.OpenLog]:
    """One op, if there is anything to open."""
    if plan.logging is not None and (plan.logging.per_rank or plan.logging.tracker):
        # By name: the order in a plan has no meaning.
        trackers = tuple(_tracker(one) for _, one in sorted(plan.logging.tracker.items()))
        yield ops.OpenLog(per_rank=plan.logging.per_rank, trackers=trackers, span=plan.span("logging"))


def _tracker(tracker: observing.TensorboardTracker | observing.WandbTracker) -> ops.Tracker:
    match tracker:
        case observing.TensorboardTracker():
            return ops.Tracker(kind="tensorboard")
        case observing.WandbTracker(project=project, mode=mode, entity=entity, name=name):
            return ops.Tracker(kind="wandb", mode=mode.value, project=project, entity=entity, name=name)
        case _:
            assert_never(tracker)


def start_profile(plan: Plan) -> Iterator[ops.StartProfile]:
    """One op, if the plan requests a trace."""
    if (profile := plan.profile) is not None:
        yield ops.StartProfile(
            first_step=profile.first_step,
            last_step=profile.last_step,
            memory=profile.memory,
            span=plan.span("profile"),
        )


def stop_profile(plan: Plan) -> Iterator[ops.StopProfile]:
    """The op that ends the trace of `start_profile`."""
    if plan.profile is not None:
        yield ops.StopProfile(last_step=plan.profile.last_step, span=plan.span("profile"))


_ALL = tuple(MeshDim)


def load_readers(plan: Plan) -> Iterator[ops.LoadReaders]:
    if plan.train.metrics or plan.train.callbacks:
        yield ops.LoadReaders(span=_span(plan), **stated(ops.LoadReaders, plan))


def read_gradients(plan: Plan) -> Iterator[ops.ReadGradients]:
    if plan.train.metrics or _is_read(plan, "on_gradients"):
        yield ops.ReadGradients(over=_ALL, span=_span(plan))


def read_step(plan: Plan) -> Iterator[ops.ReadStep]:
    if _is_read(plan, "on_step"):
        yield ops.ReadStep(over=_ALL, span=_span(plan))


def read_evaluations(plan: Plan) -> Iterator[ops.ReadEvaluations]:
    if _is_read(plan, "on_evaluation") and plan.data.eval:
        yield ops.ReadEvaluations(over=_ALL, span=_span(plan))


def agree_to_stop(plan: Plan) -> Iterator[ops.AgreeToStop]:
    """One op, if a callback is called before the end of the run: its request is for all ranks."""
    if any(set(own.points) - {"on_start", "on_end"} for own in plan.train.callbacks):
        yield ops.AgreeToStop(over=_ALL, span=_span(plan))


def _is_read(plan: Plan, point: str) -> bool:
    return any(point in own.points for own in plan.train.callbacks)


def _span(plan: Plan) -> Span:
    return plan.span("train.callbacks" if plan.train.callbacks else "train.metrics")


def guard_step(plan: Plan) -> Iterator[ops.GuardStep]:
    """One op, unless the plan requests only what every run does: to stop at a loss that is NaN or inf."""
    if (guard := plan.guard) is None:
        return
    nonfinite = _nonfinite(guard.nonfinite)
    if nonfinite.at_most is not None or guard.loss_spike is not None:
        yield ops.GuardStep(
            nonfinite=nonfinite,
            loss_spike=_spike(guard.loss_spike),
            over=plan.tensor_parallel.on if plan.tensor_parallel else (),
            span=plan.span("guard"),
        )


def _nonfinite(action: observing.Nonfinite) -> ops.NonfiniteGuard:
    match action:
        case observing.StopAtNonfinite():
            return ops.NonfiniteGuard(at_most=None)
        case observing.SkipNonfinite(at_most=at_most):
            return ops.NonfiniteGuard(at_most=at_most)
        case _:
            assert_never(action)


def _spike(action: observing.Spike | None) -> ops.SpikeGuard | None:
    match action:
        case None:
            return None
        case observing.StopAtSpike(deviations=deviations, window=window):
            return ops.SpikeGuard(deviations=deviations, window=window, at_most=None)
        case observing.SkipSpike(deviations=deviations, window=window, at_most=at_most):
            return ops.SpikeGuard(deviations=deviations, window=window, at_most=at_most)
        case _:
            assert_never(action)


def compare_replicas(bound: BoundPlan) -> Iterator[ops.CompareReplicas]:
    """One op, if the plan requests it. Stages of a pipeline have no copies but of tied weights."""
    plan, is_tied = bound.plan, bool(ties_of_ends(bound))
    if plan.guard is not None and plan.guard.replicas_every is not None:
        yield ops.CompareReplicas(
            every_steps=plan.guard.replicas_every,
            over=tuple(mesh_dim for mesh_dim in MeshDim if is_tied or mesh_dim is not MeshDim.PP),
            span=plan.span("guard.replicas_every"),
        )
