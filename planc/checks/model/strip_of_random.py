"""A part of names to remove where no names are read."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code
from planc.plan.spec import Weights

CODE = Code("P739", "strip-of-random", "no tensors are read whose names could change")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding at `model.strip` if weights are random."""
    model = subject.plan.model
    if model.strip is not None and model.weights is Weights.RANDOM:
        yield CODE.at(
            subject.plan.span("model.strip"),
            "weights are random, so no file is read",
            help="write `weights = pretrained`, or remove `strip`",
        )
