"""Sharded features that the model's code needs together."""

from __future__ import annotations

from planc.checks.support.clash_report import clash_groups, labels_at
from planc.checks.support.rule import Findings, Subject
from planc.checks.tensor_parallel.tensor_parallel_faults import judges_layouts
from planc.diagnostics import Code
from planc.layouts.flow import ClashKind

CODE = Code("P482", "features-apart", "the model needs all features of a token")


@judges_layouts(CODE)
def check(subject: Subject) -> Findings:
    """One finding, at the rule that shards the features, for all layers."""
    for group in clash_groups(subject, ClashKind.FEATURES_APART):
        spans = subject.rule_spans(group.producers)
        span = subject.primary_span(spans)
        consumers = subject.rule_spans(group.consumers)
        yield CODE.at(
            span,
            subject.outputs(group.producers, group.first.arriving),
            secondary=(
                *labels_at(spans, "and here", apart_from=span),
                *labels_at(consumers, "and this takes its output", apart_from=span),
            ),
            notes=(_reason(subject, group.first.consumer), *subject.size_note(group.consumers)),
            help="gather the features: write `output = Replicate()`, or `Shard(1)` for a sharded sequence",
        )


def _reason(subject: Subject, consumer: str) -> str:
    (name,) = subject.patterns([consumer])
    module = subject.inventory.get(consumer)
    if module is not None and not module.parameters:
        return f"`{name}` adds to its output and normalizes it over all features of a token"
    return f"before `{name}`, the code normalizes all features together or combines them with others"
