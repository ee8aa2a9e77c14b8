"""Activations that would be recomputed twice."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label, Severity
from planc.layouts.families import family
from planc.source import Span
from planc.vocab import ancestors

CODE = Code("P802", "nested-checkpointing", "a module is recomputed inside another", Severity.WARNING)


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One warning for each pair of rules, of which one names modules inside the other's."""
    checkpointed = subject.bound.checkpointed
    seen: set[tuple[Span, Span]] = set()
    for fqn, span in checkpointed.items():
        outer = min((parent for parent in ancestors(fqn) if parent in checkpointed), key=len, default=None)
        if outer is None or (checkpointed[outer], span) in seen:
            continue
        seen.add((checkpointed[outer], span))
        inner, holder = family(subject.inventory, fqn), family(subject.inventory, outer)
        yield CODE.at(
            span,
            f"`{inner}` is part of `{holder}`",
            secondary=(Label(checkpointed[outer], f"`{holder}` is recomputed here"),)
            if checkpointed[outer] != span
            else (),
            notes=("the inner module's forward would run three times in total",),
            help="remove one of the two rules",
        )
