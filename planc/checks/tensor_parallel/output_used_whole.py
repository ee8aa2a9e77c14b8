"""Sharded outputs that the model's code needs whole, or writes into."""

from __future__ import annotations

from planc.checks.support.remedies import changed
from planc.checks.support.rule import Findings, Subject
from planc.checks.tensor_parallel.tensor_parallel_faults import judges_layouts
from planc.diagnostics import Code
from planc.inventory.schema import Kind
from planc.plan.bind import Assignment
from planc.source import Span
from planc.styles.edges import FEATURES, normal
from planc.vocab import Shard, parent_of

REDUCED = Code("P433", "features-reduced", "a reduction over features would see one shard")
WRITTEN = Code("P434", "output-written", "the model modifies a redistributed output in place")


@judges_layouts(REDUCED, WRITTEN)
def check(subject: Subject) -> Findings:
    """One finding at each rule that shards features that the code reduces, or writes into."""
    inventory = subject.inventory
    # The rules on heads cover the code of attention.
    attentions = {*inventory.own_attentions, *(attention.fqn for attention in inventory.attentions)}
    outside = tuple(fqn for fqn in inventory.reduced if parent_of(fqn) not in attentions)
    reduced, written = _by_rule(subject, outside), _by_rule(subject, inventory.written)
    for span, fqns in reduced.items():
        divided = [fqn for fqn in fqns if _divides_features(subject.bound.styles[fqn])]
        if divided:
            names = subject.named(divided)
            yield REDUCED.at(
                span,
                f"the model computes a mean, a maximum or the like over all features of {names}",
                notes=("each rank would reduce its own shard, and the run would not detect the difference",),
                help=f"keep these modules whole: write {_whole(subject, divided)}",
            )
    for span, fqns in written.items():
        names = subject.named(fqns)
        yield WRITTEN.at(
            span,
            f"the model modifies the output of {names} in place",
            notes=("torch forbids this for a redistributed tensor, and the first forward would fail",),
            help=f"keep these modules whole, with the layers before them: write {_whole(subject, fqns)}",
        )


def _divides_features(assignment: Assignment) -> bool:
    """Whether ranks have shards of a module's output features, inside of it or behind."""
    is_inside = Kind.EMBEDDING in assignment.style.kinds and assignment.placement("weight") == Shard(1)
    return is_inside or normal(assignment.use.output) == FEATURES


def _by_rule(subject: Subject, names: tuple[str, ...]) -> dict[Span, list[str]]:
    found: dict[Span, list[str]] = {}
    for fqn in names:
        assignment = subject.bound.styles.get(fqn)
        if assignment is not None and assignment.style.name != "replicate":
            found.setdefault(assignment.span, []).append(fqn)
    return found


def _whole(subject: Subject, fqns: list[str]) -> str:
    """The rule that keeps modules whole, with their neighbors in the same container."""
    around = {parent_of(fqn) for fqn in fqns}
    styled = [fqn for fqn in subject.bound.styles if parent_of(fqn) in around]
    return changed(subject, styled, "replicate")
