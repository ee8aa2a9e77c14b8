"""8-bit moments in blocks that ranks would share."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from planc.checks.support.legal_values import divisors
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.plan.bind import Assignment
from planc.plan.expert_shards import shares_experts
from planc.plan.optimizer import AdamW8bit
from planc.vocab import Partial, Replicate, Shard

CODE = Code("P728", "block-cut", "ranks would share a block of 8-bit moments")


@reports(CODE, of_sound=True)
def check(subject: Subject) -> Findings:
    """One finding at the block for all parameters whose columns tp shards within blocks, and one for the
    biases of experts whose features ranks share."""
    kind, tp = subject.plan.optimizer.kind, subject.plan.mesh.tp
    if not isinstance(kind, AdamW8bit):
        return
    yield from _experts(subject)
    if tp == 1:
        return
    found = [*_sharded_columns(subject)]
    cut = [item for item in found if item[2] is None or item[2] // tp % kind.block]
    if not cut:
        return
    own = gcd(*(columns // tp for _, _, columns in found if columns is not None))
    packed = any(columns is None for _, _, columns in found)
    fits = max(size for size in divisors(own) if size <= kind.block) if own else 1
    spans = dict.fromkeys(assignment.span for assignment, _, _ in cut)
    yield CODE.at(
        subject.plan.span("optimizer.kind.block"),
        f"block = {kind.block}",
        secondary=tuple(Label(span, "shards columns") for span in spans),
        notes=(f"tp = {tp} cuts blocks of {subject.named(fqn for _, fqn, _ in cut)}",),
        help="write `kind = adamw_bf16(...)`" if packed or fits < _LEAST else f"write `block = {fits}`",
    )


_LEAST = 8
"""Below it, scales would take more memory than codes."""


def _experts(subject: Subject) -> Findings:
    spec, bound = subject.plan.expert_parallel, subject.bound
    if spec is None:
        return
    modules = [bound.inventory.get(fqn) for fqn in bound.experts if not shares_experts(bound, fqn)]
    # Features are columns of biases, which are stacked to a matrix.
    biases = [
        f"{module.fqn}.{parameter.name}"
        for module in modules
        if module is not None
        for parameter in module.parameters
        if len(parameter.shape) == 2
    ]
    if biases:
        yield CODE.at(
            spec.span,
            f"shards columns of {subject.named(biases)}",
            secondary=(Label(subject.plan.span("optimizer.kind"), "has blocks of columns"),),
            help="write `kind = adamw_bf16(...)`",
        )


def _sharded_columns(subject: Subject) -> Iterator[tuple[Assignment, str, int | None]]:
    """(rule, parameter, columns) of matrices whose columns tp shards; None if they are packed."""
    bound = subject.bound
    shapes = {fqn: parameter.shape for fqn, _, parameter in bound.inventory.parameters()}
    for assignment in bound.styles.values():
        for name, placement in assignment.parameters.items():
            fqn = f"{assignment.fqn}.{name}"
            shape = shapes.get(fqn, ())
            if len(shape) < 2 or fqn in bound.frozen:
                continue
            if isinstance(placement, Replicate | Partial):
                continue
            if placement.tensor_dim % len(shape) == len(shape) - 1:
                yield assignment, fqn, shape[-1] if isinstance(placement, Shard) else None
