"""Attention with only some of its queries, keys and values divided."""

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
from planc.vocab import MeshDim

CODE = Code("P411", "heads-partly-divided", "queries, keys and values are not divided alike")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding for each projection that divides while another does not, at its rule."""
    for group in clash_groups(subject, ClashKind.HEADS_PARTLY):
        spans = rule_spans(subject, group.producers)
        span = spans[0] if spans else block_span(subject)
        bare = [fqn for fqn in group.partners if fqn not in subject.bound.styles]
        whole = quoted(patterns(subject, group.partners))
        yield CODE.at(
            span,
            f"divides the heads of {quoted(patterns(subject, group.producers))}",
            secondary=(
                *labels_at(
                    rule_spans(subject, group.partners),
                    "this leaves all heads on every rank",
                    apart_from=span,
                ),
                *labels_at(
                    rule_spans(subject, group.consumers), "they meet on the way here", apart_from=span
                ),
            ),
            notes=(
                f"{whole} keeps all heads" + (": no rule names it" if bare else ""),
                *size_note(subject, group.consumers),
            ),
            help=rules_to_add(subject, bare, "colwise") if bare else f"make {whole} `colwise`",
        )


RULE = Rule((CODE,), check, over=MeshDim.TP, block="tensor_parallel", unless=TENSOR_PARALLEL_FAULTS)
