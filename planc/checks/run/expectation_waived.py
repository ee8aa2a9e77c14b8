"""Assertions in a plan that a launch waives."""

from __future__ import annotations

from planc.checks.run.expectation_broken import written_fact
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label, Severity

CODE = Code("P776", "expectation-waived", "an expectation is waived", Severity.NOTE)


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One note for each fact whose expectations are waived, with what it is."""
    for waiver in subject.plan.waived:
        fact = waiver.expectations[0].subject
        value = subject.facts.get(fact)
        yield CODE.at(
            waiver.span,
            f"nothing proves `{fact}`" if value is None else f"{fact} is {written_fact(fact, value)}",
            secondary=tuple(Label(expectation.span, "waived") for expectation in waiver.expectations),
        )
