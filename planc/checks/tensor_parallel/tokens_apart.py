"""Attention and recurrences on part of the sequence."""

from __future__ import annotations

from planc.checks.support.clash_report import clash_groups, labels_at
from planc.checks.support.rule import Findings, Subject
from planc.checks.tensor_parallel.tensor_parallel_faults import judges_layouts
from planc.diagnostics import Code
from planc.layouts.flow import ClashKind
from planc.vocab import parent_of

CODE = Code("P481", "tokens-apart", "attention needs all tokens of a sequence")

_LEAVE_OUT = "leave out `output`, so each rank gets whole sequences and a shard of the features"


@judges_layouts(CODE)
def check(subject: Subject) -> Findings:
    """One finding, at the rule that shards the sequence, for all layers and projections."""
    for group in clash_groups(subject, ClashKind.TOKENS_APART):
        spans = subject.rule_spans(group.producers)
        span = subject.primary_span(spans)
        names = subject.named(group.producers)
        styles = filter(None, map(subject.style, group.producers))
        writes = all("output" in style.options for style in styles)
        holders = [parent_of(fqn) for fqn in group.consumers]
        yield CODE.at(
            span,
            f"{names} outputs {group.first.arriving}",
            secondary=(
                *labels_at(spans, "and here", apart_from=span),
                *labels_at(subject.rule_spans(group.consumers), "and this takes its output", apart_from=span),
            ),
            notes=(
                f"{subject.named(holders)} combines all tokens of all sequences between "
                f"{names} and {subject.named(group.consumers)}",
                *subject.size_note(group.consumers),
            ),
            help=_LEAVE_OUT
            if writes
            else "use another style: this one gives each rank a shard of the sequence",
        )
