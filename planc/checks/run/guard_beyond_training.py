"""Guards with windows or intervals longer than the training."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.tables import plural

CODE = Code("P742", "guard-beyond-training", "training ends before the guard's first check")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One error for a window as long as the training, and one for a comparison that never happens."""
    plan = subject.plan
    if plan.guard is None or plan.train.steps is None:
        return
    steps = Label(plan.span("train.steps"), f"{plural(plan.train.steps, 'step')} of training")
    spike, every = plan.guard.loss_spike, plan.guard.replicas_every
    if spike is not None and spike.window >= plan.train.steps:
        help = f"write `window = {max(5, plan.train.steps // 10)} steps`, or train longer"
        text = f"compares a loss with the {spike.window} steps before it"
        yield CODE.at(plan.span("guard.loss_spike"), text, secondary=(steps,), help=help)
    if every is not None and every > plan.train.steps:
        help = f"set `replicas_every` to at most {plural(plan.train.steps, 'step')}"
        text = f"compares replicas every {every} steps"
        yield CODE.at(plan.span("guard.replicas_every"), text, secondary=(steps,), help=help)
