"""The ops of the `optimizer` block that run once."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, cast

from planc.graph import ops
from planc.graph.graph import UNKNOWN_STEPS
from planc.inventory.matrices import matrices
from planc.optimizers.optimizer import Implementation
from planc.plan.bind import BoundPlan
from planc.plan.optimizer import SCHEDULES, Muon, Optimizer, OwnSchedule, WarmupStableDecay, kind_of
from planc.plan.optimizer import Implementation as Choice
from planc.plan.settle import in_steps
from planc.plan.spec import Plan


def build_optimizer(bound: BoundPlan) -> ops.BuildOptimizer:
    kind, span = bound.plan.optimizer.kind, bound.plan.span("optimizer.kind")
    rest = kind.rest if isinstance(kind, Muon) else kind
    return ops.BuildOptimizer(
        settings=_settings(kind),
        implementation=_implementation(rest),
        lr=kind.lr,
        groups=_groups(bound),
        span=span,
    )


def _implementation(kind: Optimizer) -> Implementation:
    """`auto` for an optimizer with one alone."""
    return cast(Implementation, getattr(kind, "implementation", Choice.AUTO).value)


def _settings(kind: Optimizer) -> Any:
    """The optimizer as the graph has it, and so its `rest`."""
    case = kind_of(kind)
    given = {name: getattr(kind, name) for name in case.argument_names()}
    if isinstance(kind, Muon):
        given["rest"] = _settings(kind.rest)
    return case(**{name: _plain(value) for name, value in given.items()})


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, StrEnum) else value


def _groups(bound: BoundPlan) -> tuple[ops.ParameterGroup, ...]:
    """Trained parameters in the model's order, by the optimizer, weight decay and learning rate; matrices
    last."""
    kind = bound.plan.optimizer.kind
    widths = of_matrices(bound)
    groups: dict[tuple[bool, float, float], list[str]] = {}
    for fqn, _, _ in bound.inventory.parameters():
        if fqn in bound.frozen:
            continue
        is_matrix = fqn in widths
        own = kind.rest if isinstance(kind, Muon) and not is_matrix else kind
        decay, _ = bound.weight_decay.get(fqn, (own.weight_decay, None))
        lr, _ = bound.learning_rates.get(fqn, (own.lr, None))
        groups.setdefault((is_matrix, decay, lr), []).append(fqn)
    return tuple(
        _group(tuple(names), lr=lr, weight_decay=decay, widths=widths if is_matrix else None)
        for (is_matrix, decay, lr), names in sorted(groups.items())
    )


def _group(
    names: tuple[str, ...], *, lr: float, weight_decay: float, widths: Mapping[str, tuple[int, ...]] | None
) -> ops.ParameterGroup:
    if widths is None:
        return ops.ParameterGroup(lr=lr, weight_decay=weight_decay, parameters=names)
    fused = tuple((fqn, widths[fqn]) for fqn in names if widths[fqn])
    return ops.MatrixGroup(lr=lr, weight_decay=weight_decay, parameters=names, widths=fused)


def of_matrices(bound: BoundPlan) -> Mapping[str, tuple[int, ...]]:
    """The parameters that Muon updates, with the widths of the parts that they fuse; empty without Muon."""
    if not isinstance(bound.plan.optimizer.kind, Muon):
        return {}
    hidden = {matrix.fqn: matrix.widths for matrix in matrices(bound.inventory)}
    chosen = {fqn: rest for fqn, (rest, _) in bound.rests.items()}
    return {
        fqn: hidden.get(fqn, ())
        for fqn, _, _ in bound.inventory.parameters()
        if fqn not in bound.frozen and not chosen.get(fqn, fqn not in hidden)
    }


def build_schedule(plan: Plan) -> ops.BuildSchedule:
    schedule, steps = plan.optimizer.schedule, plan.train.steps
    return ops.BuildSchedule(
        kind=next((name for name, case in SCHEDULES.items() if isinstance(schedule, case)), ops.OWN_SCHEDULE),
        warmup_steps=in_steps(schedule.warmup, steps),
        decay_steps=in_steps(schedule.decay, steps) if isinstance(schedule, WarmupStableDecay) else None,
        min_factor=getattr(schedule, "min_factor", 1.0),
        num_steps=steps or UNKNOWN_STEPS,
        span=plan.span("optimizer.schedule"),
    )


def load_schedule(plan: Plan, schedule: OwnSchedule) -> ops.LoadSchedule:
    return ops.LoadSchedule(extension=schedule.extension, span=plan.span("optimizer.schedule"))
