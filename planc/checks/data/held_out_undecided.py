"""Evaluations without data of their own."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label

CODE = Code("P753", "held-out-undecided", "an evaluation needs either a `source` or a `share`")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for an evaluation with both or neither, and one for each share after the first."""
    plan, first = subject.plan, ""
    for label, evaluation in plan.data.eval.items():
        path = f"data.eval.{label}"
        if evaluation.source is None and evaluation.share is None:
            help = "write `share = 1 %` to hold out a part of the training documents, or a `source`"
            yield CODE.at(plan.span(f"{path}.share"), "no `source` and no `share`", help=help)
        elif evaluation.source is not None and evaluation.share is not None:
            yield CODE.at(
                plan.span(f"{path}.share"),
                "a share of the training documents, and other data",
                secondary=(Label(plan.span(f"{path}.source"), "the other data"),),
                help="give each an `eval` block of its own",
            )
        elif evaluation.share is not None and first:
            yield CODE.at(
                plan.span(f"{path}.share"),
                "a second share",
                secondary=(Label(plan.span(first), "the first"),),
                notes=("both would be the documents with the lowest hashes",),
                help="hold out one share",
            )
        elif evaluation.share is not None:
            first = f"{path}.share"
