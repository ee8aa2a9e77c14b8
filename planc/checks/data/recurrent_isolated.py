"""Isolated documents in models with layers that carry a state along the sequence."""

from __future__ import annotations

from planc.checks.context_parallel.recurrent_under_cp import without_attention
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code

CODE = Code("P730", "recurrent-isolated", "recurrent layers can't isolate documents")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding at `data.packing` for each repeated block with members that have no attention."""
    if not subject.plan.data.packing.isolates:
        return
    for text in without_attention(subject.inventory):
        yield CODE.at(
            subject.plan.span("data.packing"),
            text,
            notes=("their state would carry over from one document to the next",),
            help="write `packing = none` for one document per sequence, or `packing = attend` to let them "
            "attend to each other",
        )
