"""Norms on a sharded sequence whose gradients are not reduced over tp."""

from __future__ import annotations

from planc.checks.support.clash_report import (
    clash_groups,
    labels_at,
    patterns,
    primary_span,
    rule_spans,
    rules_to_add,
    size_note,
)
from planc.checks.support.rule import Findings, Subject, reports
from planc.checks.tensor_parallel.tensor_parallel_faults import TENSOR_PARALLEL_FAULTS
from planc.diagnostics import Code
from planc.layouts.families import quoted
from planc.layouts.flow import ClashKind
from planc.vocab import MeshDim

CODE = Code("P408", "norm-outside-sequence-parallel", "a norm's gradient is not reduced over tp")


@reports(CODE, over=MeshDim.TP, block="tensor_parallel", unless=TENSOR_PARALLEL_FAULTS)
def check(subject: Subject) -> Findings:
    """One finding at the block for all norms without a rule, and one at each rule with a wrong style."""
    for group in clash_groups(subject, ClashKind.NORM_ON_SEQUENCE):
        spans = rule_spans(subject, group.consumers)
        span = primary_span(subject, spans)
        names = quoted(patterns(subject, group.consumers))
        yield CODE.at(
            span,
            f"{names} runs on {group.first.arriving}" if spans else f"no rule matches {names}",
            secondary=labels_at(
                rule_spans(subject, group.producers)[:1],
                f"the sequence is sharded here: {group.first.arriving}",
                apart_from=span,
            ),
            notes=(
                "each rank has different tokens, so each would train a different copy of the weight",
                *size_note(subject, group.consumers),
            ),
            help=f"use `sequence_parallel` for {names}"
            if spans
            else rules_to_add(subject, group.consumers, "sequence_parallel"),
        )
