"""Tied parameters that would be placed differently, or whose gradients would be summed differently."""

from __future__ import annotations

from planc.checks.support.clash_report import labels_at
from planc.checks.support.rule import Findings, Subject
from planc.checks.tensor_parallel.tensor_parallel_faults import judges_layouts
from planc.diagnostics import Code
from planc.inventory.schema import Kind
from planc.vocab import Replicate, parent_of

CODE = Code("P416", "tied-placements", "tied parameters are sharded differently")


@judges_layouts(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each tie whose names get the parameter, or its gradient, different placements."""
    if subject.plan.tensor_parallel is None:
        return
    for tie in subject.inventory.ties:
        placements = {name: _placement(subject, name) for name in tie}
        owner, other = tie[0], next((n for n in tie[1:] if placements[n] != placements[tie[0]]), None)
        if other is None:
            continue
        spans = {name: subject.rule_spans([parent_of(name)]) for name in (owner, other)}
        primary = next((name for name in (other, owner) if spans[name]), other)
        second = owner if primary == other else other
        yield CODE.at(
            spans[primary][0] if spans[primary] else subject.tp_span,
            f"`{primary}` gets {placements[primary]}",
            secondary=labels_at(spans[second], f"`{second}` gets {placements[second]}", apart_from=None),
            notes=(f"`{owner}` and `{other}` are one parameter", *_bare(second, spans[second] == ())),
            help=_help(subject, tie),
        )


def _help(subject: Subject, tie: tuple[str, ...]) -> str:
    modules = (subject.inventory.get(parent_of(name)) for name in tie)
    if any(module is not None and module.kind is Kind.EMBEDDING for module in modules):
        return "shard both by rows: `embedding_rowwise` for the embedding, `colwise` for the head"
    return "write rules for these modules that place the parameter in the same way, or leave both out"


def _bare(name: str, is_bare: bool) -> tuple[str, ...]:
    return (f"`{parent_of(name)}` has no rule, so it is replicated",) if is_bare else ()


def _placement(subject: Subject, parameter: str) -> str:
    """The placement of a parameter by one of its names, and of its gradient if ranks have summands of it."""
    fqn, _, name = parameter.rpartition(".")
    assignment = subject.bound.styles.get(fqn)
    if assignment is None:
        return str(Replicate())
    is_summed = assignment.style.reduces_parameter_gradients
    return f"{assignment.placement(name)}{', its gradient summed over tp' * is_summed}"
