"""Epochs and shares of steps as numbers of steps, once the number of sequences is known."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from planc.plan.facts import global_batch
from planc.plan.optimizer import WarmupStableDecay
from planc.plan.spec import Plan

if TYPE_CHECKING:
    from fractions import Fraction


def is_counted(plan: Plan) -> bool:
    """Whether the number of steps depends on the number of sequences."""
    return plan.train.steps is None and plan.train.epochs is not None and global_batch(plan) > 0


def settled(plan: Plan, num_sequences: int | None = None) -> Plan:
    """The plan with its steps, and with its warm-up and decay in steps, as far as they are known."""
    steps, epochs, spans, origins = plan.train.steps, plan.train.epochs, plan.spans, plan.origins
    if is_counted(plan) and num_sequences is not None:
        assert epochs is not None
        steps = max(1, ceiling(epochs * num_sequences / global_batch(plan)))
        spans = {**spans, "train.steps": plan.span("train.epochs")}
        origins = {**origins, "train.steps": origins["train.epochs"]}
    if steps is None:
        return plan
    schedule = plan.optimizer.schedule
    shares: dict[str, Any] = {"warmup": in_steps(schedule.warmup, steps)}
    if isinstance(schedule, WarmupStableDecay):
        shares["decay"] = max(1, in_steps(schedule.decay, steps))
    return replace(
        plan,
        train=replace(plan.train, steps=steps),
        optimizer=replace(plan.optimizer, schedule=replace(schedule, **shares)),
        spans=spans,
        origins=origins,
        num_sequences=num_sequences,
    )


def in_steps(value: int | Fraction, steps: int | None) -> int:
    """Steps, or a share of all steps rounded up as transformers does; 0 for a share of an unknown number."""
    if isinstance(value, int):
        return value
    return ceiling(value * steps) if steps is not None else 0


def ceiling(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)
