"""Norms on a sharded sequence whose gradients are not reduced over tp."""

from __future__ import annotations

from planc.checks.support.clash_report import clash_groups, labels_at
from planc.checks.support.rule import Findings, Subject
from planc.checks.tensor_parallel.tensor_parallel_faults import judges_layouts
from planc.diagnostics import Code
from planc.layouts.flow import ClashKind

CODE = Code("P408", "norm-outside-sequence-parallel", "a norm's gradient is not reduced over tp")


@judges_layouts(CODE)
def check(subject: Subject) -> Findings:
    """One finding at the block for all norms without a rule, and one at each rule with a wrong style."""
    for group in clash_groups(subject, ClashKind.NORM_ON_SEQUENCE):
        spans = subject.rule_spans(group.consumers)
        span = subject.primary_span(spans)
        names = subject.named(group.consumers)
        yield CODE.at(
            span,
            f"{names} runs on {group.first.arriving}" if spans else f"no rule matches {names}",
            secondary=labels_at(
                subject.rule_spans(group.producers)[:1],
                f"the sequence is sharded here: {group.first.arriving}",
                apart_from=span,
            ),
            notes=(
                "each rank has different tokens, so each would train a different copy of the weight",
                *subject.size_note(group.consumers),
            ),
            help=f"use `sequence_parallel` for {names}"
            if spans
            else subject.rules_to_add(group.consumers, "sequence_parallel"),
        )
