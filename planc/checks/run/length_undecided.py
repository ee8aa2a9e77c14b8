"""Plans with two lengths of training, or without one."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Label

CODE = Code("P752", "length-undecided", "`train` needs either `steps` or `epochs`")


def check(subject: Subject) -> Iterator[Diagnostic]:
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


RULE = Rule((CODE,), check)
