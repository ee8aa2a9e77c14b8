"""One value of a graph that two plans are compared by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from planc.diff.difference import Action, Change, Group
from planc.diff.side import Side
from planc.record import record
from planc.tables import format_number


@record
class Fact:
    """`read` returns the value, or None if the graph has none; `path` is the setting that determines it.

    `expectation` is its name in `expect`; `is_key` facts are shown unchanged too, next to others that
    changed in their group.
    """

    group: Group
    name: str
    path: str
    read: Callable[[Side], Any]
    expectation: str = ""
    is_key: bool = False


def compare(facts: Iterable[Fact], old: Side, new: Side) -> Iterator[Change]:
    """One change per fact; Action.KEEP for equal ones."""
    for fact in facts:
        before, after = _text(fact.read(old)), _text(fact.read(new))
        if before == after:
            if before is not None:
                yield Change(fact.group, Action.KEEP, fact.name, before, after)
            continue
        action = Action.of(before, after)
        place = (old if after is None else new).place(fact.path)
        broken = new.broken(fact.expectation) if fact.expectation else ()
        yield Change(fact.group, action, fact.name, before, after, place=place, findings=broken)


def _text(value: Any) -> str | None:
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case int():
            return format_number(value)
        case tuple():
            return ", ".join(str(item) for item in value)
        case _:
            return str(value)
