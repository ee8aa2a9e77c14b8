"""A guard that the training is too short for."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Label

CODE = Code("P742", "guard-beyond-training", "the training ends before the guard looks")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One error for a window that no step comes after, and one for a comparison that never comes."""
    plan = subject.plan
    if plan.guard is None:
        return
    steps = Label(plan.span("train.steps"), f"{plan.train.steps} steps of training")
    spike, every = plan.guard.loss_spike, plan.guard.replicas_every
    if spike is not None and spike.window >= plan.train.steps:
        help = f"write `window = {max(5, plan.train.steps // 10)} steps`, or train longer"
        text = f"a loss is judged by {spike.window} steps before it"
        yield CODE.at(plan.span("guard.loss_spike"), text, secondary=(steps,), help=help)
    if every is not None and every > plan.train.steps:
        help = f"it can be up to {plan.train.steps} steps"
        text = f"replicas are compared after every {every} steps"
        yield CODE.at(plan.span("guard.replicas_every"), text, secondary=(steps,), help=help)


RULE = Rule((CODE,), check)
