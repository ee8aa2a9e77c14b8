"""Shards of the sequence where the model has no dimension of its own for it."""

from __future__ import annotations

from collections.abc import Sequence

from planc.checks.support.clash_report import labels_at
from planc.checks.support.remedies import changed
from planc.checks.support.rule import Findings, Subject, reports
from planc.checks.tensor_parallel.gathered_in_attention import CODE as GATHERED_IN_ATTENTION
from planc.checks.tensor_parallel.layouts_disagree import CODE as LAYOUTS_DISAGREE
from planc.checks.tensor_parallel.tensor_parallel_faults import TENSOR_PARALLEL_FAULTS
from planc.diagnostics import Code
from planc.plan.bind import Assignment
from planc.styles.edges import SEQUENCE, At
from planc.styles.style import edges
from planc.vocab import MeshDim

CODE = Code("P435", "tokens-flattened", "the model has flattened the tokens here")


@reports(
    CODE,
    over=MeshDim.TP,
    block="tensor_parallel",
    unless=(*TENSOR_PARALLEL_FAULTS, LAYOUTS_DISAGREE, GATHERED_IN_ATTENTION),
)
def check(subject: Subject) -> Findings:
    """One finding for all rules that redistribute a sequence where the tokens are one dimension."""
    flattened = {module.fqn for module in subject.inventory.modules if module.flattened}
    styles = subject.bound.styles
    fqns = [fqn for fqn, one in styles.items() if fqn in flattened and _moves_sequence(one)]
    if not fqns:
        return
    spans = subject.rule_spans(fqns)
    yield CODE.at(
        spans[0],
        f"redistributes the sequence at {subject.named(fqns)}",
        secondary=labels_at(spans, "and here", apart_from=spans[0]),
        notes=(
            "the model passes [tokens, features] there: dimension 1 has the features",
            *subject.size_note(fqns),
        ),
        help=_help(subject, fqns),
    )


def _help(subject: Subject, fqns: Sequence[str]) -> str:
    before = "redistribute the sequence at the modules before and behind"
    modules = [module for fqn in fqns if (module := subject.inventory.get(fqn)) is not None]
    first = [module for module in modules if set(fqns).isdisjoint(module.sources)]
    uses = [subject.bound.styles[module.fqn].use for module in first]
    if not all(module.is_linear for module in modules) or any(use.input != SEQUENCE for use in uses):
        return f"{before}, or keep it whole: leave out `Shard(1)`"
    whole = changed(subject, fqns, "sequence_parallel")
    return f"{before}, or write {whole}: whole weights, for each rank's own tokens"


def _moves_sequence(assignment: Assignment) -> bool:
    """Whether an edge of the module goes to or from shards of the sequence."""
    found = edges(assignment.style, assignment.use, is_prepared=False)
    return any(
        SEQUENCE in (edge.arriving.value, edge.leaving.value) and edge.at in (At.INPUT, At.OUTPUT)
        for edge in found
    )
