"""Plans with two lengths of training, or without one."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label

CODE = Code("P752", "length-undecided", "`train` needs either `steps` or `epochs`")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding if both are given, or if both are none."""
    plan = subject.plan
    steps, epochs = plan.train.steps, plan.train.epochs
    if steps is None and epochs is None:
        yield CODE.at(plan.span("train.epochs"), "no `steps` and no `epochs`", help="write `epochs = 1`")
    elif epochs is not None and steps is not None and plan.span("train.steps") != plan.span("train.epochs"):
        yield CODE.at(
            plan.span("train.epochs"),
            "a second length of the training",
            secondary=(Label(plan.span("train.steps"), "the first"),),
            help="remove one of them",
        )
