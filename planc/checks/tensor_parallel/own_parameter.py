"""Parameters of a module whose layers give it sharded activations."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.clash_report import (
    clash_groups,
    labels_at,
    outputs,
    patterns,
    primary_span,
    rule_spans,
    size_note,
)
from planc.checks.support.remedies import gathered
from planc.checks.support.rule import Rule, Subject
from planc.checks.tensor_parallel.tensor_parallel_faults import TENSOR_PARALLEL_FAULTS
from planc.diagnostics import Code, Diagnostic
from planc.layouts.families import quoted
from planc.layouts.flow import ClashKind
from planc.vocab import MeshDim

CODE = Code("P480", "own-parameter", "a parameter's gradient is not reduced over tp")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding, at the rule that shards, for all modules of one kind."""
    for group in clash_groups(subject, ClashKind.OWN_PARAMETER):
        spans = rule_spans(subject, group.producers)
        span = primary_span(subject, spans)
        owner = group.first.consumer
        yield CODE.at(
            span,
            outputs(subject, group.producers, group.first.arriving),
            secondary=labels_at(spans, "and here", apart_from=span),
            notes=(
                f"`{patterns(subject, [owner])[0]}` has {_owned(subject, owner)} of its own, "
                "replicated on every rank",
                "each rank would have part of the gradient, and nothing would sum the parts over tp",
                *size_note(subject, group.consumers),
            ),
            help=f"gather the outputs of its layers: write {gathered(subject, group.consumers)}",
        )


def _owned(subject: Subject, owner: str) -> str:
    module = subject.inventory.get(owner)
    assert module is not None, "clashes are of modules of this inventory"
    return quoted(parameter.name for parameter in module.parameters)


RULE = Rule((CODE,), check, over=MeshDim.TP, block="tensor_parallel", unless=TENSOR_PARALLEL_FAULTS)
