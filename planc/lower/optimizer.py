"""The ops of the `optimizer` block that run once."""

from __future__ import annotations

from typing import Any, cast

from planc.graph.graph import UNKNOWN_STEPS
from planc.graph.ops import BuildOptimizer, BuildSchedule, ParameterGroup
from planc.optimizers.optimizer import Implementation
from planc.plan.bind import BoundPlan
from planc.plan.optimizer import SCHEDULES, WarmupStableDecay, kind_of
from planc.plan.settle import in_steps
from planc.plan.spec import Plan


def build_optimizer(bound: BoundPlan) -> BuildOptimizer:
    kind, span = bound.plan.optimizer.kind, bound.plan.span("optimizer.kind")
    groups = _groups(bound)
    case = kind_of(kind)
    settings: Any = case(**{name: getattr(kind, name) for name in case.argument_names()})
    return BuildOptimizer(
        settings=settings,
        implementation=cast(Implementation, kind.implementation.value),
        lr=kind.lr,
        groups=groups,
        span=span,
    )


def _groups(bound: BoundPlan) -> tuple[ParameterGroup, ...]:
    """Trained parameters in the model's order, by their weight decay and learning rate."""
    kind = bound.plan.optimizer.kind
    groups: dict[tuple[float, float], list[str]] = {}
    for fqn, _, _ in bound.inventory.parameters():
        if fqn in bound.frozen:
            continue
        decay, _ = bound.weight_decay.get(fqn, (kind.weight_decay, None))
        lr, _ = bound.learning_rates.get(fqn, (kind.lr, None))
        groups.setdefault((decay, lr), []).append(fqn)
    return tuple(
        ParameterGroup(lr=lr, weight_decay=decay, parameters=tuple(names))
        for (decay, lr), names in sorted(groups.items())
    )


def build_schedule(plan: Plan) -> BuildSchedule:
    schedule, steps = plan.optimizer.schedule, plan.train.steps
    return BuildSchedule(
        kind=next(name for name, case in SCHEDULES.items() if isinstance(schedule, case)),
        warmup_steps=in_steps(schedule.warmup, steps),
        decay_steps=in_steps(schedule.decay, steps) if isinstance(schedule, WarmupStableDecay) else None,
        min_factor=getattr(schedule, "min_factor", 1.0),
        num_steps=steps or UNKNOWN_STEPS,
        span=plan.span("optimizer.schedule"),
    )
