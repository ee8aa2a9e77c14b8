"""Warmups that are longer than the run."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.plan.optimizer import Constant, WarmupStableDecay
from planc.plan.settle import in_steps
from planc.tables import plural

CODE = Code("P706", "warmup-beyond-training", "the warmup takes the whole training")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding at the schedule if the learning rate never reaches its peak, or never leaves it.

    A constant schedule may reach it in the last step. The decay of a `wsd` has a rule of its own.
    """
    schedule, steps = subject.plan.optimizer.schedule, subject.plan.train.steps
    warmup = in_steps(schedule.warmup, steps)
    if steps is None:
        return
    never_left = warmup == steps > 1 and not isinstance(schedule, Constant | WarmupStableDecay)
    if warmup > steps or never_left:
        tenth = max(1, steps // 10)
        share = " (a tenth of the training)" if steps >= 10 else ""
        yield CODE.at(
            subject.plan.span("optimizer.schedule.warmup"),
            f"{plural(warmup, 'step')} of warmup",
            secondary=(Label(subject.plan.span("train.steps"), f"{plural(steps, 'step')} of training"),),
            notes=("the learning rate would reach its peak in the last step and never decay",)
            if never_left
            else ("the learning rate would never reach its peak or decay",),
            help=f"write `warmup = {plural(tenth, 'step')}`{share}, or train longer",
        )
