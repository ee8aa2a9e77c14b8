"""Divided parameters whose size leaves unequal shards."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.attention_heads import divided_attentions
from planc.checks.support.legal_values import choices, divisors
from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Label
from planc.inventory.schema import Kind, Module, Parameter
from planc.layouts.families import as_patterns, families, quoted
from planc.plan.bind import Assignment
from planc.source import Span
from planc.vocab import MeshDim, Shard, StridedShard

CODE = Code("P403", "width-indivisible", "a divided parameter's size is not divisible by tp")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding for each size, at `mesh.tp`. Projections of indivisible heads are left to P401."""
    tp = subject.plan.mesh.tp
    excused = {
        attention.fqn
        for attention, _ in divided_attentions(subject)
        if attention.num_heads % tp or attention.num_kv_heads % tp
    }
    uneven: dict[int, list[Assignment]] = {}
    for fqn, assignment in subject.bound.styles.items():
        if fqn.rpartition(".")[0] not in excused:
            for size in _uneven_sizes(subject, assignment):
                uneven.setdefault(size, []).append(assignment)
    for size, assignments in uneven.items():
        spans: dict[Span, list[str]] = {}
        for assignment in assignments:
            spans.setdefault(assignment.span, []).append(assignment.fqn)
        yield CODE.at(
            subject.plan.span("mesh.tp"),
            f"{size} over tp = {tp}",
            secondary=tuple(
                Label(span, f"divides {quoted(as_patterns(families(subject.inventory, fqns)))}")
                for span, fqns in spans.items()
            ),
            notes=("ranks would compute with unequal shapes",),
            help=f"tp can be {choices(divisors(size), near=tp)}",
        )


def _uneven_sizes(subject: Subject, assignment: Assignment) -> set[int]:
    module = subject.inventory.get(assignment.fqn)
    assert module is not None, "styles are of modules of this inventory"
    found = set()
    for parameter in module.parameters:
        placement = assignment.placement(parameter.name)
        if isinstance(placement, Shard | StridedShard) and len(parameter.shape) > placement.tensor_dim:
            size = parameter.shape[placement.tensor_dim]
            size //= placement.split_factor if isinstance(placement, StridedShard) else 1
            if size % subject.plan.mesh.tp and not _is_vocabulary(subject, module, parameter, placement):
                found.add(size)
    return found


def _is_vocabulary(
    subject: Subject, module: Module, parameter: Parameter, placement: Shard | StridedShard
) -> bool:
    """Rows of an embedding or of the head: the lookup and the loss are exact with unequal shards."""
    head = subject.inventory.head
    rows = placement.tensor_dim == 0 and parameter.shape[0] == subject.inventory.vocab_size
    return rows and (module.kind is Kind.EMBEDDING or (head is not None and module.fqn == head.fqn))


RULE = Rule((CODE,), check, over=MeshDim.TP)
