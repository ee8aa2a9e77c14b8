"""Steps to profile that the training does not have."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Label

CODE = Code("P740", "profile-beyond-training", "the training has no such steps to profile")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One error where the last step comes before the first one, or after the end."""
    plan = subject.plan
    if (profile := plan.profile) is None:
        return
    if profile.last_step < profile.first_step:
        first = Label(plan.span("profile.first_step"), f"step {profile.first_step} is the first")
        help = f"it can be {profile.first_step} or more"
        text = f"step {profile.last_step} comes before it"
        yield CODE.at(plan.span("profile.last_step"), text, secondary=(first,), help=help)
    elif profile.last_step > plan.train.steps:
        steps = Label(plan.span("train.steps"), f"{plan.train.steps} steps of training")
        help = f"it can be up to {plan.train.steps}"
        text = f"step {profile.last_step} never comes"
        yield CODE.at(plan.span("profile.last_step"), text, secondary=(steps,), help=help)


RULE = Rule((CODE,), check)
