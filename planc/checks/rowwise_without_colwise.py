"""Row-parallel layers whose input nobody divided."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.clash_report import (
    block_span,
    clash_groups,
    labels_at,
    patterns,
    rule_spans,
    rules_to_add,
    size_note,
)
from planc.checks.families import quoted
from planc.checks.layout_flow import ClashKind
from planc.checks.model import Rule, Subject
from planc.checks.tensor_parallel_faults import TENSOR_PARALLEL_FAULTS
from planc.diagnostics import Code, Diagnostic
from planc.inventory.schema import Kind
from planc.vocab import MeshDim

CODE = Code("P407", "rowwise-without-colwise", "a rowwise layer's input is not divided")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding, at the rowwise rule, for all layers and rules alike."""
    for group in clash_groups(subject, ClashKind.FEATURES_NOT_DIVIDED):
        spans = rule_spans(subject, group.consumers)
        span = spans[0] if spans else block_span(subject)
        producing = rule_spans(subject, group.producers)
        bare = [fqn for fqn in group.producers if fqn not in subject.bound.styles]
        linear = bool(bare) and all(
            module and module.kind is Kind.LINEAR for module in map(subject.inventory.get, bare)
        )
        yield CODE.at(
            span,
            f"needs {group.first.needs}, gets {group.first.arriving}",
            secondary=(
                *labels_at(spans[1:], "and here", apart_from=span),
                *labels_at(producing, f"this leaves {group.first.arriving}", apart_from=span),
            ),
            notes=(
                f"the input comes from {quoted(patterns(subject, group.producers))}"
                + (", which no rule names" if bare else ""),
                *size_note(subject, group.consumers),
            ),
            help=rules_to_add(subject, bare, "colwise")
            if linear
            else "use `rowwise_split_input`, which divides its input itself",
        )


RULE = Rule((CODE,), check, over=MeshDim.TP, block="tensor_parallel", unless=TENSOR_PARALLEL_FAULTS)
