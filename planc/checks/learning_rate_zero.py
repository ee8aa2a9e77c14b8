"""Training that changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.model import Rule, Subject
from planc.diagnostics import Code, Diagnostic

CODE = Code("P711", "learning-rate-zero", "the learning rate is zero throughout")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding at the optimizer when no step could move a weight."""
    if subject.plan.optimizer.kind.lr == 0:
        yield CODE.at(
            subject.plan.span("optimizer.kind"), "lr = 0", help="give the peak learning rate: `lr = 3e-4`"
        )


RULE = Rule((CODE,), check)
