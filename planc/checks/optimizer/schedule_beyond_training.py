"""Phases of a schedule that do not fit into the run."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Label
from planc.plan.optimizer import WarmupStableDecay

CODE = Code("P715", "schedule-beyond-training", "warm-up and decay are longer than the training")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding at a `wsd` whose decay would begin before its warm-up ends."""
    plan, schedule = subject.plan, subject.plan.optimizer.schedule
    if not isinstance(schedule, WarmupStableDecay):
        return
    warmup, decay, steps = schedule.warmup, schedule.decay, plan.train.steps
    if warmup <= steps < warmup + decay:
        left = steps - warmup
        yield CODE.at(
            plan.span("optimizer.schedule"),
            f"{warmup} steps of warm-up, {decay} of decay",
            secondary=(Label(plan.span("train.steps"), f"{steps} steps of training"),),
            notes=("the learning rate would have to fall before it has reached its peak",),
            help=f"write `decay = {left} steps` or fewer, or train longer"
            if left
            else "shorten the warm-up, or train longer",
        )


RULE = Rule((CODE,), check)
