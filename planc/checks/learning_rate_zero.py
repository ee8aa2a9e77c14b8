"""Training that changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.model import Rule, Subject
from planc.diagnostics import Code, Diagnostic

CODE = Code("P711", "learning-rate-zero", "the learning rate is zero throughout")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding at the optimizer when no step could move a weight."""
    optimizer, own = subject.plan.optimizer, subject.bound.learning_rates
    if optimizer.kind.lr == 0 and not any(lr for lr, _ in own.values()):
        yield CODE.at(
            subject.plan.span("optimizer.kind"), "lr = 0", help="give the peak learning rate: `lr = 3e-4`"
        )


RULE = Rule((CODE,), check)
