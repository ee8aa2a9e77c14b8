"""Weight decay that overshoots zero."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code
from planc.plan.optimizer import Optimizer, optimizers_of
from planc.plan.spec import Plan
from planc.source import Span

CODE = Code("P713", "decay-beyond-one", "weight decay overshoots zero")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each weight decay whose product with its peak learning rate is at least 1.

    For a learning rate of at least 1, one finding only: that is the likelier slip.
    """
    for path, kind in optimizers_of(subject.plan.optimizer.kind):
        yield from _of_optimizer(subject.plan, path, kind)


def _of_optimizer(plan: Plan, path: str, kind: Optimizer) -> Findings:
    own: dict[Span, tuple[float, float]] = {}
    decays = {plan.span(f"{path}.weight_decay"): kind.weight_decay}
    for rule in plan.optimizer.rules:
        group = rule.action
        decay = kind.weight_decay if group.weight_decay is None else group.weight_decay
        if group.lr is None:
            decays[rule.action_span] = decay
        else:
            own[rule.action_span] = group.lr, decay
    if kind.lr >= 1:
        decays = {plan.span(f"{path}.lr"): max(decays.values())}
    for span, (lr, decay) in {**{span: (kind.lr, decay) for span, decay in decays.items()}, **own}.items():
        if lr * decay >= 1:
            yield CODE.at(
                span,
                f"lr x weight_decay = {lr:g} x {decay:g} = {lr * decay:g}",
                notes=(
                    "each step would subtract lr x weight_decay of every weight, which is all of it or more",
                ),
                help="set `lr` between 1e-5 and 1e-2" if lr >= 1 else "set `weight_decay` to about 0.1",
            )
