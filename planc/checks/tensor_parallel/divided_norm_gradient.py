"""Query and key norms on sharded heads whose gradients are not reduced over tp."""

from __future__ import annotations

from planc.checks.support.clash_report import clash_groups, labels_at
from planc.checks.support.rule import Findings, Subject
from planc.checks.tensor_parallel.tensor_parallel_faults import judges_layouts
from planc.diagnostics import Code
from planc.layouts.flow import ClashKind

CODE = Code("P414", "divided-norm-gradient", "a head norm's gradient is not reduced over tp")

_STYLE = "replicated_with_grad_allreduce"


@judges_layouts(CODE)
def check(subject: Subject) -> Findings:
    """One finding at the block for all norms without a rule, and one at each rule with a wrong style."""
    for group in clash_groups(subject, ClashKind.NORM_ON_HEADS):
        spans = subject.rule_spans(group.consumers)
        span = subject.primary_span(spans)
        names = subject.named(group.consumers)
        yield CODE.at(
            span,
            f"{names} runs on sharded heads" if spans else f"no rule matches {names}",
            secondary=labels_at(
                subject.rule_spans(group.producers), "the heads are sharded here", apart_from=span
            ),
            notes=(
                "each rank has different heads, so each would train a different copy of the weight",
                *subject.size_note(group.consumers),
            ),
            help=f"use `{_STYLE}` for {names}" if spans else subject.rules_to_add(group.consumers, _STYLE),
        )
