"""Elastic runs that would start again from nothing."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic
from planc.plan.spec import Resume

CODE = Code("P311", "elastic-without-resume", "an elastic run has no checkpoint to go on from")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One error where the plan never saves before its end, or does not resume from what it saves."""
    plan = subject.plan
    if plan.elastic is None:
        return
    checkpoint = plan.checkpoint
    if checkpoint is None:
        text, path = "the plan has no checkpoint block", "elastic"
        help = "write `checkpoint { save_every = 100 steps }`: all since the last save is trained again"
    elif checkpoint.save_every is None or checkpoint.save_every >= plan.train.steps:
        text, path = "no step is saved before the last one", "checkpoint.save_every"
        help = f"write `save_every` of less than {plan.train.steps} steps"
    elif checkpoint.resume is not Resume.LATEST:
        text, path = "a run that is started again begins anew", "checkpoint.resume"
        help = "write `resume = latest`"
    else:
        return
    yield CODE.at(plan.span(path), text, help=help)


RULE = Rule((CODE,), check)
