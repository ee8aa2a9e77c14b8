"""AdamW's decay rates in the wrong order."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Severity
from planc.plan.optimizer import Adam, optimizers_of

CODE = Code("P712", "betas-exchanged", "beta1 is larger than beta2", Severity.WARNING)


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One warning at the optimizer if beta1 is above beta2, for which AdamW is not known to converge."""
    for path, kind in optimizers_of(subject.plan.optimizer.kind):
        if not isinstance(kind, Adam) or kind.betas[0] <= kind.betas[1]:
            continue
        first, second = kind.betas
        yield CODE.at(
            subject.plan.span(f"{path}.betas"),
            f"betas = [{first:g}, {second:g}]",
            notes=("the mean of gradients would react more slowly than the variance that divides it",),
            help=f"write `betas = [{second:g}, {first:g}]`",
        )
