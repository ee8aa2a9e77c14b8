"""Query and key norms on divided heads without their gradients being summed."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.clash_report import (
    clash_groups,
    labels_at,
    patterns,
    primary_span,
    rule_spans,
    rules_to_add,
    size_note,
)
from planc.checks.support.rule import Rule, Subject
from planc.checks.tensor_parallel.tensor_parallel_faults import TENSOR_PARALLEL_FAULTS
from planc.diagnostics import Code, Diagnostic
from planc.layouts.families import quoted
from planc.layouts.flow import ClashKind
from planc.vocab import MeshDim

CODE = Code("P414", "divided-norm-gradient", "the gradient of a norm on divided heads is not summed over tp")

_STYLE = "replicated_with_grad_allreduce"


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding for all norms without a rule, at the block, and one for those with a wrong one, at it."""
    for group in clash_groups(subject, ClashKind.NORM_ON_HEADS):
        spans = rule_spans(subject, group.consumers)
        span = primary_span(subject, spans)
        names = quoted(patterns(subject, group.consumers))
        yield CODE.at(
            span,
            f"{names} runs on divided heads" if spans else f"no rule names {names}",
            secondary=labels_at(
                rule_spans(subject, group.producers), "the heads are divided here", apart_from=span
            ),
            notes=(
                "each rank sees its own heads, so each would train its own copy of the weight",
                *size_note(subject, group.consumers),
            ),
            help=f"use `{_STYLE}` for {names}" if spans else rules_to_add(subject, group.consumers, _STYLE),
        )


RULE = Rule((CODE,), check, over=MeshDim.TP, block="tensor_parallel", unless=TENSOR_PARALLEL_FAULTS)
