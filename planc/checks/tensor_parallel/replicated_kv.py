"""Replicated key/value heads where ranks can't share them."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.clash_report import labels_at, patterns, rule_spans, rules_to_add
from planc.checks.support.legal_values import choices, divisors
from planc.checks.support.remedies import changed
from planc.checks.support.rule import Rule, Subject
from planc.checks.support.rule_groups import by_rule
from planc.checks.tensor_parallel.heads_indivisible import CODE as HEADS_INDIVISIBLE
from planc.checks.tensor_parallel.tensor_parallel_faults import TENSOR_PARALLEL_FAULTS
from planc.diagnostics import Code, Diagnostic
from planc.layouts.families import quoted
from planc.record import record
from planc.styles.replicated_kv import REPLICATED_KV
from planc.tables import plural
from planc.vocab import MeshDim

CODE = Code("P437", "replicated-kv", "these key/value heads can't be replicated")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding for each rule and reason."""
    for span, assignments in by_rule(subject):
        found: dict[_Fault, list[str]] = {}
        for assignment in assignments:
            fault = _fault(subject, assignment.fqn) if assignment.style.shares_heads else None
            if fault is not None:
                found.setdefault(fault, []).append(assignment.fqn)
        for fault, fqns in found.items():
            names = patterns(subject, fqns)
            yield CODE.at(
                span,
                f"{quoted(names)}: {fault.reason}",
                secondary=labels_at(
                    rule_spans(subject, fault.rest), "this shards keys or values", apart_from=span
                ),
                help=_help(subject, fault, fqns),
            )


@record
class _Fault:
    reason: str
    rest: tuple[str, ...] = ()
    """The attention's other projections, which need the style too."""
    is_divisible: bool = False


def _fault(subject: Subject, fqn: str) -> _Fault | None:
    """Why the ranks can't share the key/value heads of a projection."""
    projections, tp = subject.inventory.kv_projections(), subject.plan.mesh.tp
    if fqn not in projections:
        return _Fault("it is not known to project to keys or values of which ranks can compute the same")
    attention, _ = projections[fqn]
    heads = plural(attention.num_kv_heads, "key/value head")
    if attention.num_kv_heads % tp == 0:
        return _Fault(f"tp = {tp} divides {heads}", is_divisible=True)
    if tp % attention.num_kv_heads:
        return _Fault(f"tp = {tp} is not a multiple of {heads}")
    assert attention.shared_kv is not None, "it has the projection"
    others = (f"{attention.fqn}.{one.layer}" for one in attention.shared_kv.projections)
    rest = tuple(one for one in others if not _is_replicated(subject, one))
    return _Fault("keys and values are not both replicated", rest) if rest else None


def _is_replicated(subject: Subject, fqn: str) -> bool:
    assignment = subject.bound.styles.get(fqn)
    return assignment is not None and assignment.style.shares_heads


def _help(subject: Subject, fault: _Fault, fqns: list[str]) -> str:
    if fault.rest:
        rest = {one for fqn in fqns for one in (_fault(subject, fqn) or fault).rest}
        bare = sorted(one for one in rest if one not in subject.bound.styles)
        if bare:
            return rules_to_add(subject, bare, REPLICATED_KV.name)
        return f"write {changed(subject, sorted(rest), REPLICATED_KV.name)}"
    if fault.is_divisible:
        return f"write {changed(subject, fqns, 'colwise')}"
    return f"leave out the rule for `{patterns(subject, fqns)[0]}`, or set `tp` to {_legal(subject, fqns)}"


def _legal(subject: Subject, fqns: list[str]) -> str:
    """The sizes of tp that replicate key/value heads: multiples of them that divide the query heads."""
    projections = subject.inventory.kv_projections()
    attentions = [projections[fqn][0] for fqn in fqns if fqn in projections]
    if not attentions:
        return "1"
    num_heads, num_kv_heads = attentions[0].num_heads, attentions[0].num_kv_heads
    sizes = [size for size in divisors(num_heads) if size > num_kv_heads and size % num_kv_heads == 0]
    return choices(sizes, near=subject.plan.mesh.tp) if sizes else "1"


RULE = Rule(
    (CODE,),
    check,
    over=MeshDim.TP,
    block="tensor_parallel",
    unless=(*TENSOR_PARALLEL_FAULTS, HEADS_INDIVISIBLE),
)
