"""The effect of another plan on a resumed run: none, the order of sums, or the training itself."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from planc.diff.difference import Action, Change
from planc.diff.lines import compare_line, compare_unlined, having
from planc.diff.reductions import compare_reduction_order
from planc.diff.side import Side
from planc.graph.consequence import Consequence
from planc.record import record


@cache
def changes_to_allow() -> tuple[str, ...]:
    """The names of differences that change the training itself: only a person can decide to allow them."""
    return tuple(line.label for line in having(Consequence.NUMERICS))


@record
class ResumeChanges:
    """The differences, by consequence. `training` has (name to allow it by, change)."""

    training: tuple[tuple[str, Change], ...]
    sums: tuple[Change, ...]
    """Changes that only affect rounding."""
    harmless: tuple[Change, ...]


def resume_changes(old: Side, new: Side) -> ResumeChanges:
    """The effect of `new` on a run that `old` began. The checkpoint itself refuses other models and data."""
    training = tuple(
        (line.label, change)
        for line in having(Consequence.NUMERICS)
        for change in compare_line(line, old, new)
        if change.action is not Action.KEEP
    )
    order = any(change.action is not Action.KEEP for change in compare_reduction_order(old, new))
    beside = tuple(_told(_BESIDE, old, new))
    run = tuple(_told((Consequence.OUTPUT,), old, new))
    if not (training or beside or run):
        beside = tuple(compare_unlined(old, new))
    return ResumeChanges(training, beside if order else (), run if order else (*beside, *run))


_BESIDE = (Consequence.LAYOUT, Consequence.SAMPLES, Consequence.IDENTITY, Consequence.START)


def _told(consequences: tuple[Consequence, ...], old: Side, new: Side) -> Iterator[Change]:
    """The changed lines; a line with a change for each module is one change here."""
    for line in having(*consequences):
        changed = [one for one in compare_line(line, old, new) if one.action is not Action.KEEP]
        if len(changed) > 1 and line.comparer is not None:
            yield Change(changed[0].group, Action.CHANGE, line.label)
        else:
            yield from changed
