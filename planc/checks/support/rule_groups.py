"""Styles by the rule that assigned them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planc.checks.support.rule import Subject
from planc.plan.bind import Assignment
from planc.source import Span


def by_rule(subject: Subject) -> Iterator[tuple[Span, Sequence[Assignment]]]:
    """(span, assignments) of each rule, `auto` being one, in the order of the modules."""
    found: dict[Span, list[Assignment]] = {}
    for assignment in subject.bound.styles.values():
        found.setdefault(assignment.span, []).append(assignment)
    yield from found.items()
