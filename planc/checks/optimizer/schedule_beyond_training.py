"""Phases of a schedule that are longer than the run."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.plan.optimizer import WarmupStableDecay
from planc.plan.settle import in_steps
from planc.tables import plural

CODE = Code("P715", "schedule-beyond-training", "warmup and decay exceed the training steps")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding at a `wsd` whose decay would begin before its warmup ends."""
    plan, schedule = subject.plan, subject.plan.optimizer.schedule
    steps = plan.train.steps
    if not isinstance(schedule, WarmupStableDecay) or steps is None:
        return
    warmup, decay = in_steps(schedule.warmup, steps), in_steps(schedule.decay, steps)
    if warmup <= steps < warmup + decay:
        left = steps - warmup
        yield CODE.at(
            plan.span("optimizer.schedule"),
            f"{plural(warmup, 'step')} of warmup and {decay} of decay",
            secondary=(Label(plan.span("train.steps"), f"{plural(steps, 'step')} of training"),),
            notes=("the learning rate would decay before it reaches its peak",),
            help=f"set `decay` to at most {plural(left, 'step')}, or train longer"
            if left
            else "shorten `warmup`, or train longer",
        )
