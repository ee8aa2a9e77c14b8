"""Weight decay that overshoots zero."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.model import Rule, Subject
from planc.diagnostics import Code, Diagnostic
from planc.source import Span

CODE = Code("P713", "decay-beyond-one", "one step of weight decay takes more than the weight")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding for each weight decay that, times the peak learning rate, is 1 or more."""
    plan = subject.plan
    lr = plan.optimizer.kind.lr
    decays: dict[Span, float] = {plan.span("optimizer.kind"): plan.optimizer.kind.weight_decay}
    decays.update({rule.action_span: rule.action.weight_decay for rule in plan.optimizer.rules})
    for span, decay in decays.items():
        if lr * decay >= 1:
            yield CODE.at(
                span,
                f"lr x weight_decay = {lr:g} x {decay:g} = {lr * decay:g}",
                notes=("AdamW multiplies every weight by 1 - lr x weight_decay in each step",),
                help="weight_decay is usually 0.1",
            )


RULE = Rule((CODE,), check)
