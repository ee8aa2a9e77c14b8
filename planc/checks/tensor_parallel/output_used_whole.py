"""Outputs that the model's code takes whole, or writes into, where a rule divides them."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.remedies import changed
from planc.checks.support.rule import Rule, Subject
from planc.checks.tensor_parallel.tensor_parallel_faults import TENSOR_PARALLEL_FAULTS
from planc.diagnostics import Code, Diagnostic
from planc.layouts.families import as_patterns, families, quoted
from planc.layouts.types import FEATURES, normal
from planc.source import Span
from planc.vocab import MeshDim

REDUCED = Code("P433", "features-reduced", "a statistic of all features would be one of a rank's own")
WRITTEN = Code("P434", "output-written", "the model writes into an output that a rule redistributes")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding at each rule that divides features of which the code takes a statistic, or writes into."""
    inventory = subject.inventory
    # What an attention does with heads is for the rules about heads.
    attentions = {*inventory.own_attentions, *(attention.fqn for attention in inventory.attentions)}
    outside = tuple(fqn for fqn in inventory.reduced if fqn.rpartition(".")[0] not in attentions)
    reduced, written = _by_rule(subject, outside), _by_rule(subject, inventory.written)
    for span, fqns in reduced.items():
        divided = [fqn for fqn in fqns if normal(subject.bound.styles[fqn].use.output) == FEATURES]
        if divided:
            names = quoted(as_patterns(families(inventory, divided)))
            yield REDUCED.at(
                span,
                f"the mean, the largest or the like of what {names} gives is taken over all features",
                notes=("each rank would take its own, which differs from rank to rank; no run reports it",),
                help=f"leave these whole: write {_whole(subject, divided)}",
            )
    for span, fqns in written.items():
        names = quoted(as_patterns(families(inventory, fqns)))
        yield WRITTEN.at(
            span,
            f"what {names} gives is written into in place",
            notes=("torch forbids this for what it has redistributed: the first forward would fail",),
            help=f"leave these whole, with the layers that feed them: write {_whole(subject, fqns)}",
        )


def _by_rule(subject: Subject, names: tuple[str, ...]) -> dict[Span, list[str]]:
    found: dict[Span, list[str]] = {}
    for fqn in names:
        assignment = subject.bound.styles.get(fqn)
        if assignment is not None and assignment.style.name != "replicate":
            found.setdefault(assignment.span, []).append(fqn)
    return found


def _whole(subject: Subject, fqns: list[str]) -> str:
    """The rule that leaves modules whole, with their neighbours in the container around them."""
    around = {fqn.rpartition(".")[0] for fqn in fqns}
    styled = [fqn for fqn in subject.bound.styles if fqn.rpartition(".")[0] in around]
    return changed(subject, styled, "replicate")


RULE = Rule(
    (REDUCED, WRITTEN), check, over=MeshDim.TP, block="tensor_parallel", unless=TENSOR_PARALLEL_FAULTS
)
