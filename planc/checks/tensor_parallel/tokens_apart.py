"""Attention, and recurrences, on a part of the sequence."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.clash_report import (
    clash_groups,
    labels_at,
    patterns,
    primary_span,
    rule_spans,
    size_note,
)
from planc.checks.support.rule import Rule, Subject
from planc.checks.tensor_parallel.tensor_parallel_faults import TENSOR_PARALLEL_FAULTS
from planc.diagnostics import Code, Diagnostic
from planc.layouts.families import quoted
from planc.layouts.flow import ClashKind
from planc.vocab import MeshDim

CODE = Code("P481", "tokens-apart", "tokens that belong together are on different ranks")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding, at the rule that leaves the sequence divided, for all layers and projections."""
    for group in clash_groups(subject, ClashKind.TOKENS_APART):
        spans = rule_spans(subject, group.producers)
        span = primary_span(subject, spans)
        names = quoted(patterns(subject, group.producers))
        holders = [fqn.rpartition(".")[0] for fqn in group.consumers]
        yield CODE.at(
            span,
            f"{names} leaves {group.first.arriving}",
            secondary=(
                *labels_at(spans, "and here", apart_from=span),
                *labels_at(rule_spans(subject, group.consumers), "and this takes it", apart_from=span),
            ),
            notes=(
                f"{quoted(patterns(subject, holders))} relates tokens to each other between it and "
                f"{quoted(patterns(subject, group.consumers))}, and takes all of the batch",
                *size_note(subject, group.consumers),
            ),
            help="leave `output` out, so that each rank has whole sequences and a share of the features",
        )


RULE = Rule((CODE,), check, over=MeshDim.TP, block="tensor_parallel", unless=TENSOR_PARALLEL_FAULTS)
