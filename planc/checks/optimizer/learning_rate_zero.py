"""Training that changes nothing."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label

CODE = Code("P711", "learning-rate-zero", "the learning rate is always zero")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding if no step could change a weight: at the optimizer, or at the group for all parameters."""
    optimizer, own = subject.plan.optimizer, subject.bound.learning_rates
    frozen = subject.bound.frozen
    names = [fqn for fqn, _, _ in subject.inventory.parameters() if fqn not in frozen]
    if not names or any(own[fqn][0] if fqn in own else optimizer.kind.lr for fqn in names):
        return
    if optimizer.kind.lr == 0:
        yield CODE.at(
            subject.plan.span("optimizer.kind.lr"), "lr = 0", help="set the peak learning rate: `lr = 3e-4`"
        )
        return
    first, *others = dict.fromkeys(own[fqn][1] for fqn in names)
    yield CODE.at(
        first,
        "lr = 0" if others else "lr = 0 for every parameter",
        secondary=tuple(Label(span, "and here, for all other parameters") for span in others),
        help="remove `lr = 0` from the groups of parameters to train",
    )
