"""Attention and recurrences on part of the sequence."""

from __future__ import annotations

from planc.checks.support.clash_report import (
    clash_groups,
    labels_at,
    patterns,
    primary_span,
    rule_spans,
    size_note,
)
from planc.checks.support.rule import Findings, Subject, reports
from planc.checks.tensor_parallel.tensor_parallel_faults import TENSOR_PARALLEL_FAULTS
from planc.diagnostics import Code
from planc.layouts.families import quoted
from planc.layouts.flow import ClashKind
from planc.vocab import MeshDim

CODE = Code("P481", "tokens-apart", "attention needs all tokens of a sequence")


@reports(CODE, over=MeshDim.TP, block="tensor_parallel", unless=TENSOR_PARALLEL_FAULTS)
def check(subject: Subject) -> Findings:
    """One finding, at the rule that shards the sequence, for all layers and projections."""
    for group in clash_groups(subject, ClashKind.TOKENS_APART):
        spans = rule_spans(subject, group.producers)
        span = primary_span(subject, spans)
        names = quoted(patterns(subject, group.producers))
        holders = [fqn.rpartition(".")[0] for fqn in group.consumers]
        yield CODE.at(
            span,
            f"{names} outputs {group.first.arriving}",
            secondary=(
                *labels_at(spans, "and here", apart_from=span),
                *labels_at(
                    rule_spans(subject, group.consumers), "and this takes its output", apart_from=span
                ),
            ),
            notes=(
                f"{quoted(patterns(subject, holders))} combines all tokens of all sequences between "
                f"{names} and {quoted(patterns(subject, group.consumers))}",
                *size_note(subject, group.consumers),
            ),
            help="leave out `output`, so each rank gets whole sequences and a shard of the features",
        )
