"""Weight decay that overshoots zero."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic
from planc.source import Span

CODE = Code("P713", "decay-beyond-one", "one step of weight decay takes more than the weight")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding for each weight decay that, times its peak learning rate, is 1 or more.

    With a learning rate of 1 or more there is one alone, for that: decays of 1 and more are rarer.
    """
    plan, kind = subject.plan, subject.plan.optimizer.kind
    own: dict[Span, tuple[float, float]] = {}
    decays = {plan.span("optimizer.kind.weight_decay"): kind.weight_decay}
    for rule in plan.optimizer.rules:
        group = rule.action
        decay = kind.weight_decay if group.weight_decay is None else group.weight_decay
        if group.lr is None:
            decays[rule.action_span] = decay
        else:
            own[rule.action_span] = group.lr, decay
    if kind.lr >= 1:
        decays = {plan.span("optimizer.kind.lr"): max(decays.values())}
    for span, (lr, decay) in {**{span: (kind.lr, decay) for span, decay in decays.items()}, **own}.items():
        if lr * decay >= 1:
            yield CODE.at(
                span,
                f"lr x weight_decay = {lr:g} x {decay:g} = {lr * decay:g}",
                notes=("weight decay takes lr x weight_decay of every weight in each step",),
                help="lr is usually between 1e-5 and 1e-2" if lr >= 1 else "weight_decay is usually 0.1",
            )


RULE = Rule((CODE,), check)
