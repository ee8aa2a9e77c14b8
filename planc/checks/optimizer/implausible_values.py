"""Settings far from usual: likely a slip by a power of ten or by a unit."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Severity
from planc.plan.optimizer import Adam, Optimizer, kind_of, optimizers_of
from planc.plan.spec import Plan

CODE = Code("P723", "implausible-value", "a setting is far from usual", Severity.WARNING)

_MOST_EPS = 1e-2
_MOST_DECAY = 1.0
_LEAST_CLIP = 1e-4
_LEAST_TIMEOUT_SECONDS = 10


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each setting beyond the values published for training language models."""
    plan = subject.plan
    for path, kind in optimizers_of(plan.optimizer.kind):
        yield from _of_optimizer(plan, path, kind)
    clip = plan.optimizer.clip_grad_norm
    if clip is not None and clip < _LEAST_CLIP:
        yield CODE.at(
            plan.span("optimizer.clip_grad_norm"),
            f"clips every gradient to a norm of {clip:g}",
            help="set `clip_grad_norm` to about 1.0",
        )
    timeout = plan.mesh.timeout
    if timeout < _LEAST_TIMEOUT_SECONDS and plan.mesh.world_size > 1:
        yield CODE.at(
            plan.span("mesh.timeout"),
            f"the run ends if a rank waits {timeout} s for another",
            notes=("at the start, ranks wait until the slowest has loaded its weights and data",),
            help="set `timeout` between 1 min and 1 h",
        )


def _of_optimizer(plan: Plan, path: str, kind: Optimizer) -> Findings:
    groups = [rule.action for rule in plan.optimizer.rules if rule.action.lr is None]
    decays = (kind.weight_decay, *(group.weight_decay or 0.0 for group in groups))
    # P713 reports the worse fault.
    takes_all = kind.lr * max(decays) >= 1
    known = kind_of(kind)
    if kind.lr > known.highest_lr and not takes_all:
        usual = " and ".join(known.usual_lr)
        yield CODE.at(plan.span(f"{path}.lr"), f"lr = {kind.lr:g}", help=f"set `lr` between {usual}")
    if isinstance(kind, Adam) and kind.eps > _MOST_EPS:
        yield CODE.at(
            plan.span(f"{path}.eps"),
            f"eps = {kind.eps:g}",
            notes=("where eps exceeds the gradients, updates would scale with the gradient as in SGD",),
            help="set `eps` between 1e-10 and 1e-5",
        )
    if kind.weight_decay > _MOST_DECAY and not takes_all:
        span = plan.span(f"{path}.weight_decay")
        yield CODE.at(span, f"weight_decay = {kind.weight_decay:g}", help="set `weight_decay` to about 0.1")
