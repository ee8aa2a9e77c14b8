"""Attention whose code assumes all heads."""

from __future__ import annotations

from collections.abc import Sequence

from planc.checks.support.attention_heads import divided_attentions
from planc.checks.support.remedies import gathered
from planc.checks.support.rule import Findings, Subject, reports
from planc.checks.tensor_parallel.heads_partly_divided import CODE as HEADS_PARTLY_DIVIDED
from planc.checks.tensor_parallel.layouts_disagree import CODE as LAYOUTS_DISAGREE
from planc.checks.tensor_parallel.tensor_parallel_faults import TENSOR_PARALLEL_FAULTS
from planc.diagnostics import Code
from planc.layouts.families import quoted
from planc.plan.divided_heads import attention_around, divided_heads
from planc.source import Span
from planc.styles.edges import FEATURES, normal
from planc.vocab import MeshDim

CODE = Code("P418", "heads-fixed", "this attention needs all of its heads")


@reports(
    CODE,
    over=MeshDim.TP,
    block="tensor_parallel",
    unless=(*TENSOR_PARALLEL_FAULTS, HEADS_PARTLY_DIVIDED, LAYOUTS_DISAGREE),
)
def check(subject: Subject) -> Findings:
    """One finding for each rule that shards projections of an attention that needs all heads."""
    by_rule: dict[Span, list[str]] = {}
    inventory = subject.inventory
    divided = {attention.fqn for attention, _ in divided_heads(subject.bound)}
    fixed = {attention.fqn for attention in inventory.attentions if attention.fixed_heads}
    for attention, assignment in divided_attentions(subject):
        if attention.fqn in fixed & divided:
            by_rule.setdefault(assignment.span, []).append(attention.fqn)
    own = {*inventory.own_attentions} - {attention.fqn for attention in inventory.own_heads}
    for fqn, assignment in subject.bound.styles.items() if own else ():
        inside = attention_around(fqn, own)
        if any(inside in known for known in by_rule.values()):
            continue
        if inside is not None and FEATURES in (normal(assignment.use.input), normal(assignment.use.output)):
            by_rule.setdefault(assignment.span, []).append(inside)
    for span, fqns in by_rule.items():
        yield CODE.at(
            span,
            f"shards the heads of {subject.named(fqns)}",
            notes=(
                "its code reshapes queries with the model's number of heads, or has them fused, "
                "so it would misread a rank's shard",
                *_whole_parameters(subject, fqns[0]),
            ),
            help=f"keep all heads on every rank: write {gathered(subject, fqns)}",
        )


def _whole_parameters(subject: Subject, attention: str) -> Sequence[str]:
    """Name the parameters that the attention itself has: each rank would have all of them."""
    module = subject.inventory.get(attention)
    if module is None or not module.parameters:
        return ()
    names = quoted(parameter.name for parameter in module.parameters)
    return (f"`{attention}` has {names} of its own, whole on every rank",)
