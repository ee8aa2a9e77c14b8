"""Expectations that were added, changed or removed: what the plans assert, not what they do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from planc.diff.difference import Action, Change, Group
from planc.diff.side import Side
from planc.plan.facts import FLAGS, SIZES
from planc.plan.spec import Expectation
from planc.tables import format_bytes, format_number

_UPPER, _LOWER = ("<", "<="), (">", ">=")


def compare_expectations(old: Side, new: Side) -> Iterator[Change]:
    """One change for each expectation that only one plan has; artifacts keep none, so they have no changes.

    Two that assert something else about the same fact are one change.
    """
    if old.plan is None or new.plan is None:
        return
    before, after = old.plan.expectations, new.plan.expectations
    for subject in dict.fromkeys(one.subject for one in (*after, *before)):
        removed, added = _only(before, after, subject), _only(after, before, subject)
        for was, now in zip_longest(removed, added):
            yield _change(was, now)


def _only(some: Sequence[Expectation], others: Sequence[Expectation], subject: str) -> list[Expectation]:
    """The expectations on a fact that the other plan does not have."""
    present = {_meaning(other) for other in others}
    return [one for one in some if one.subject == subject and _meaning(one) not in present]


def _meaning(one: Expectation) -> tuple[str, str, int | float]:
    return one.subject, one.operator, one.value


def _change(was: Expectation | None, now: Expectation | None) -> Change:
    expectation = now or was
    assert expectation is not None, "one of the plans has it"
    action = Action.of(was, now)
    before, after = (_text(each) if each else None for each in (was, now))
    if before == after:
        before, after = (f"{each.operator} {each.value}" if each else None for each in (was, now))
    note = _direction(was, now) if was and now else ""
    place = f"{expectation.span.file}:{expectation.span.line}"
    return Change(Group.EXPECT, action, expectation.subject, before, after, note=note, place=place)


def _text(expectation: Expectation) -> str:
    """`< 60 GiB`."""
    if expectation.subject in FLAGS:
        value = str(bool(expectation.value)).lower()
    elif expectation.subject in SIZES:
        value = format_bytes(int(expectation.value)).replace(".00 ", " ")
    else:
        value = (
            format_number(expectation.value) if isinstance(expectation.value, int) else str(expectation.value)
        )
    return f"{expectation.operator} {value}"


def _direction(was: Expectation, now: Expectation) -> str:
    """`loosened` or `tightened`, if the limit of one kind moved."""
    for operators, is_loose in ((_UPPER, now.value > was.value), (_LOWER, now.value < was.value)):
        if was.operator in operators and now.operator == was.operator:
            return "loosened" if is_loose else "tightened"
    return ""
