"""AdamW's decay rates in the wrong order."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Severity
from planc.plan.optimizer import AdamW

CODE = Code("P712", "betas-exchanged", "beta1 is larger than beta2", Severity.WARNING)


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One warning at the optimizer if beta1 is above beta2, for which AdamW is not known to converge."""
    kind = subject.plan.optimizer.kind
    if not isinstance(kind, AdamW):
        return
    first, second = kind.betas
    if first > second:
        yield CODE.at(
            subject.plan.span("optimizer.kind.betas"),
            f"betas = [{first:g}, {second:g}]",
            notes=("the mean of gradients would react more slowly than the variance that divides it",),
            help=f"write `betas = [{second:g}, {first:g}]`",
        )


RULE = Rule((CODE,), check)
