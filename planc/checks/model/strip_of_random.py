"""A part of names to remove where no names are read."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic
from planc.plan.spec import Weights

CODE = Code("P739", "strip-of-random", "no tensors are read whose names could change")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding at `model.strip` if weights are random."""
    model = subject.plan.model
    if model.strip is not None and model.weights is Weights.RANDOM:
        yield CODE.at(
            subject.plan.span("model.strip"),
            "weights are random, so no file is read",
            help="write `weights = pretrained`, or remove `strip`",
        )


RULE = Rule((CODE,), check)
