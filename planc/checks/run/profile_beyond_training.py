"""Steps to profile that are beyond the training."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.tables import plural

CODE = Code("P740", "profile-beyond-training", "no such steps to profile")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One error if the last step is before the first one, or after the end."""
    plan = subject.plan
    if (profile := plan.profile) is None:
        return
    if profile.last_step < profile.first_step:
        first = Label(plan.span("profile.first_step"), f"profiling starts at step {profile.first_step}")
        help = f"set `last_step` to at least {profile.first_step}"
        text = f"step {profile.last_step} is before `first_step`"
        yield CODE.at(plan.span("profile.last_step"), text, secondary=(first,), help=help)
    elif plan.train.steps is not None and profile.last_step > plan.train.steps:
        steps = Label(plan.span("train.steps"), f"{plural(plan.train.steps, 'step')} of training")
        help = f"set `last_step` to at most {plan.train.steps}"
        text = f"step {profile.last_step} is after the end"
        yield CODE.at(plan.span("profile.last_step"), text, secondary=(steps,), help=help)
