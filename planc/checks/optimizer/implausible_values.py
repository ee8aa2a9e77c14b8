"""Settings far from all that trains: a slip of a power of ten, or of a unit."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Severity
from planc.plan.optimizer import AdamW, kind_of

CODE = Code("P723", "implausible-value", "a setting is far from usual", Severity.WARNING)

_MOST_EPS = 1e-2
_MOST_DECAY = 1.0
_LEAST_CLIP = 1e-4
_LEAST_TIMEOUT_SECONDS = 10


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding for each setting beyond what is published of training language models."""
    plan, kind = subject.plan, subject.plan.optimizer.kind
    groups = [rule.action for rule in plan.optimizer.rules if rule.action.lr is None]
    decays = (kind.weight_decay, *(group.weight_decay or 0.0 for group in groups))
    # P713 says the worse of it.
    takes_all = kind.lr * max(decays) >= 1
    known = kind_of(kind)
    if kind.lr > known.highest_lr and not takes_all:
        usual = " and ".join(known.usual_lr)
        yield CODE.at(
            plan.span("optimizer.kind.lr"), f"lr = {kind.lr:g}", help=f"lr is usually between {usual}"
        )
    if isinstance(kind, AdamW) and kind.eps > _MOST_EPS:
        yield CODE.at(
            plan.span("optimizer.kind.eps"),
            f"eps = {kind.eps:g}",
            notes=("steps are divided by it where it is the larger: they follow the gradient's size",),
            help="eps is usually between 1e-10 and 1e-5",
        )
    if kind.weight_decay > _MOST_DECAY and not takes_all:
        span = plan.span("optimizer.kind.weight_decay")
        yield CODE.at(span, f"weight_decay = {kind.weight_decay:g}", help="weight_decay is usually 0.1")
    clip = plan.optimizer.clip_grad_norm
    if clip is not None and clip < _LEAST_CLIP:
        yield CODE.at(
            plan.span("optimizer.clip_grad_norm"),
            f"every gradient is made at most {clip:g} long",
            help="clip_grad_norm is usually 1.0",
        )
    timeout = plan.mesh.timeout
    if timeout < _LEAST_TIMEOUT_SECONDS and plan.mesh.world_size > 1:
        yield CODE.at(
            plan.span("mesh.timeout"),
            f"ranks that wait {timeout} s for another end the run",
            notes=("at first they wait until the slowest has its weights and its data",),
            help="timeout is usually between 1 min and 1 h",
        )


RULE = Rule((CODE,), check)
