"""Groups that choose between Muon and its `rest`, with another optimizer."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code
from planc.plan.optimizer import Muon

CODE = Code("P717", "rest-without-muon", "`rest` needs muon")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each group with `rest` if the plan's optimizer has none."""
    if isinstance(subject.plan.optimizer.kind, Muon):
        return
    for rule in subject.plan.optimizer.rules:
        if rule.action.rest is not None:
            yield CODE.at(
                rule.action_span,
                "one optimizer updates all parameters",
                help="leave out `rest`, or write `kind = muon(lr = 2e-2, rest = adamw(lr = 3e-4))`",
            )
