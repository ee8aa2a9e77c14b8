"""Styles by the rule that assigned them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

from planc.checks.support.rule import Subject
from planc.plan.bind import Assignment
from planc.source import Span


@functools.lru_cache(maxsize=1)
def by_rule(subject: Subject) -> tuple[tuple[Span, Sequence[Assignment]], ...]:
    """(span, assignments) of each rule, in the order of the modules. `auto` is a rule for each style.

    Kept, since many rules ask for it.
    """
    found: dict[tuple[Span, str], list[Assignment]] = {}
    for assignment in subject.bound.styles.values():
        found.setdefault((assignment.span, assignment.style.name), []).append(assignment)
    return tuple((span, assignments) for (span, _), assignments in found.items())


def by_reason(
    subject: Subject, reason: Callable[[Assignment], str | None]
) -> Iterator[tuple[Span, str, Sequence[str]]]:
    """(span, reason, modules) of each rule, for each reason that `reason` gives for modules of it."""
    for span, assignments in by_rule(subject):
        reasons: dict[str, list[str]] = {}
        for assignment in assignments:
            if (found := reason(assignment)) is not None:
                reasons.setdefault(found, []).append(assignment.fqn)
        yield from ((span, found, fqns) for found, fqns in reasons.items())
