"""Tied parameters that would be placed differently."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.clash_report import block_span, labels_at, rule_spans
from planc.checks.support.rule import Rule, Subject
from planc.checks.tensor_parallel.tensor_parallel_faults import TENSOR_PARALLEL_FAULTS
from planc.diagnostics import Code, Diagnostic
from planc.vocab import MeshDim, Placement, Replicate

CODE = Code("P416", "tied-placements", "tied parameters are sharded differently")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding for each tie whose parameters get different placements."""
    if subject.plan.tensor_parallel is None:
        return
    for tie in subject.inventory.ties:
        placements = {name: _placement(subject, name) for name in tie}
        owner, other = tie[0], next((n for n in tie[1:] if placements[n] != placements[tie[0]]), None)
        if other is None:
            continue
        spans = {name: rule_spans(subject, [name.rpartition(".")[0]]) for name in (owner, other)}
        primary = next((name for name in (other, owner) if spans[name]), other)
        second = owner if primary == other else other
        yield CODE.at(
            spans[primary][0] if spans[primary] else block_span(subject),
            f"`{primary}` gets {placements[primary]}",
            secondary=labels_at(spans[second], f"`{second}` gets {placements[second]}", apart_from=None),
            notes=(f"`{owner}` and `{other}` are one parameter", *_bare(second, spans[second] == ())),
            help="shard both by rows: `embedding_rowwise` for the embedding, `colwise` for the head",
        )


def _bare(name: str, is_bare: bool) -> tuple[str, ...]:
    return (f"`{name.rpartition('.')[0]}` has no rule, so it is replicated",) if is_bare else ()


def _placement(subject: Subject, parameter: str) -> Placement:
    fqn, _, name = parameter.rpartition(".")
    assignment = subject.bound.styles.get(fqn)
    return assignment.placement(name) if assignment else Replicate()


RULE = Rule((CODE,), check, over=MeshDim.TP, block="tensor_parallel", unless=TENSOR_PARALLEL_FAULTS)
