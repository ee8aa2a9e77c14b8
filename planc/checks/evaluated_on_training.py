"""Evaluation on the text that is trained on."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.model import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Label, Severity

CODE = Code(
    "P734", "evaluated-on-training", "an evaluation reads the text that is trained on", Severity.WARNING
)


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding for each `eval` block whose source is the data's own."""
    plan = subject.plan
    for label, evaluation in plan.data.eval.items():
        if evaluation.source == plan.data.source:
            yield CODE.at(
                plan.span(f"data.eval.{label}.source"),
                "the same as is trained on",
                secondary=(Label(plan.span("data.source"), "trained on"),),
                notes=("its loss says how well that text is learnt by heart",),
                help="name other files, kept out of training",
            )


RULE = Rule((CODE,), check)
