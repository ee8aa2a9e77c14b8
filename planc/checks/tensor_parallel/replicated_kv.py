"""Replicated key/value heads where ranks can't share them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from planc.checks.support.clash_report import labels_at
from planc.checks.support.legal_values import choices, divisors
from planc.checks.support.remedies import changed
from planc.checks.support.rule import Findings, Subject, reports
from planc.checks.support.rule_groups import by_reason
from planc.checks.tensor_parallel.heads_indivisible import CODE as HEADS_INDIVISIBLE
from planc.checks.tensor_parallel.tensor_parallel_faults import TENSOR_PARALLEL_FAULTS
from planc.diagnostics import Code
from planc.inventory.schema import Attention, KvProjection, OwnHeads
from planc.plan.bind import Assignment
from planc.styles.linear import COLWISE, REPLICATED_KV
from planc.tables import plural
from planc.vocab import MeshDim

KvProjections = Mapping[str, tuple[Attention | OwnHeads, KvProjection]]

CODE = Code("P437", "replicated-kv", "these key/value heads can't be replicated")


_NOT_BOTH = "keys and values are not both replicated"


@reports(CODE, over=MeshDim.TP, block="tensor_parallel", unless=(*TENSOR_PARALLEL_FAULTS, HEADS_INDIVISIBLE))
def check(subject: Subject) -> Findings:
    """One finding for each rule and reason."""
    projections = subject.inventory.kv_projections()

    def reason(assignment: Assignment) -> str | None:
        return _reason(subject, assignment.fqn, projections) if assignment.style.shares_heads else None

    for span, refusal, fqns in by_reason(subject, reason):
        attentions = dict.fromkeys(projections[fqn][0] for fqn in fqns if fqn in projections)
        rest = [one for attention in attentions for one in _not_replicated(subject, attention)]
        yield CODE.at(
            span,
            f"{subject.named(fqns)}: {refusal}",
            secondary=labels_at(subject.rule_spans(rest), "this shards keys or values", apart_from=span)
            if refusal == _NOT_BOTH
            else (),
            help=_help_for_rest(subject, rest) if refusal == _NOT_BOTH else _help(subject, fqns, attentions),
        )


def _reason(subject: Subject, fqn: str, projections: KvProjections) -> str | None:
    """Explain why the ranks can't share the key/value heads of a projection; None if they can."""
    tp = subject.plan.mesh.tp
    if fqn not in projections:
        return "it is not known to project to keys or values of which ranks can compute the same"
    attention, _ = projections[fqn]
    heads = plural(attention.num_kv_heads, "key/value head")
    if attention.num_kv_heads % tp == 0:
        return f"tp = {tp} divides {heads}"
    if tp % attention.num_kv_heads:
        return f"tp = {tp} is not a multiple of {heads}"
    return _NOT_BOTH if _not_replicated(subject, attention) else None


def _not_replicated(subject: Subject, attention: Attention | OwnHeads) -> list[str]:
    """The attention's projections to keys and values without the style."""
    layers = attention.shared_kv.projections if attention.shared_kv else ()
    fqns = (f"{attention.fqn}.{layer.layer}" for layer in layers)
    styles = ((fqn, subject.bound.styles.get(fqn)) for fqn in fqns)
    return [fqn for fqn, assignment in styles if assignment is None or not assignment.style.shares_heads]


def _help_for_rest(subject: Subject, rest: Sequence[str]) -> str:
    """Rules for the other projections."""
    bare = [one for one in rest if one not in subject.bound.styles]
    if bare:
        return subject.rules_to_add(bare, REPLICATED_KV.name)
    return f"write {changed(subject, rest, REPLICATED_KV.name)}"


def _help(subject: Subject, fqns: Sequence[str], attentions: Iterable[Attention | OwnHeads]) -> str:
    """The style for heads that tp divides; else the sizes of tp that replicate them."""
    tp, attention = subject.plan.mesh.tp, next(iter(attentions), None)
    if attention is not None and attention.num_kv_heads % tp == 0:
        return f"write {changed(subject, fqns, COLWISE.name)}"
    num_heads, num_kv_heads = (attention.num_heads, attention.num_kv_heads) if attention else (1, 1)
    # Multiples of the key/value heads, of which every rank has whole query heads.
    sizes = [size for size in divisors(num_heads) if size > num_kv_heads and size % num_kv_heads == 0]
    legal = choices(sizes, near=tp) if sizes else "1"
    return f"leave out the rule for `{subject.patterns(fqns)[0]}`, or set `tp` to {legal}"
