"""The `guard` block as ops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from planc.graph.ops import CompareReplicas, GuardStep, NonfiniteGuard, SpikeGuard
from planc.plan.bind import BoundPlan
from planc.plan.guard import Nonfinite, SkipNonfinite, SkipSpike, Spike, StopAtNonfinite, StopAtSpike
from planc.plan.spec import Plan
from planc.plan.stages import ties_of_ends
from planc.vocab import MeshDim


def guard_step(plan: Plan) -> Iterator[GuardStep]:
    """One op, unless the plan requests only what every run does: to stop at a loss that is NaN or inf."""
    if (guard := plan.guard) is None:
        return
    nonfinite = _nonfinite(guard.nonfinite)
    if nonfinite.at_most is not None or guard.loss_spike is not None:
        yield GuardStep(
            nonfinite=nonfinite,
            loss_spike=_spike(guard.loss_spike),
            over=plan.tensor_parallel.on if plan.tensor_parallel else (),
            span=plan.span("guard"),
        )


def _nonfinite(action: Nonfinite) -> NonfiniteGuard:
    match action:
        case StopAtNonfinite():
            return NonfiniteGuard(at_most=None)
        case SkipNonfinite(at_most=at_most):
            return NonfiniteGuard(at_most=at_most)
        case _:
            assert_never(action)


def _spike(action: Spike | None) -> SpikeGuard | None:
    match action:
        case None:
            return None
        case StopAtSpike(deviations=deviations, window=window):
            return SpikeGuard(deviations=deviations, window=window, at_most=None)
        case SkipSpike(deviations=deviations, window=window, at_most=at_most):
            return SpikeGuard(deviations=deviations, window=window, at_most=at_most)
        case _:
            assert_never(action)


def compare_replicas(bound: BoundPlan) -> Iterator[CompareReplicas]:
    """One op, if the plan requests it. Stages of a pipeline have no copies but of tied weights."""
    plan, is_tied = bound.plan, bool(ties_of_ends(bound))
    if plan.guard is not None and plan.guard.replicas_every is not None:
        yield CompareReplicas(
            every_steps=plan.guard.replicas_every,
            over=tuple(mesh_dim for mesh_dim in MeshDim if is_tied or mesh_dim is not MeshDim.PP),
            span=plan.span("guard.replicas_every"),
        )
