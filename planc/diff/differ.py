"""The difference of two sides."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from planc.diagnostics import Diagnostic, Severity
from planc.diff.difference import Action, Change, Group, PlanDiff, Verdict
from planc.diff.expectations import compare_expectations
from planc.diff.lines import KEY_LINES, compare_line, compare_unlined, lines
from planc.diff.reductions import compare_reduction_order, reduction_note
from planc.diff.resources import PEAK, PHASE, TOTAL, UNKNOWN, compare_resources, compare_times
from planc.diff.sample_order import SAMPLE_ORDER, compare_sample_order
from planc.diff.side import Side
from planc.diff.verdict import between, compare_checkpoints
from planc.graph.consequence import Consequence

_LINE = re.compile(r"\bline \d+")


def diff(old: Side, new: Side, *, resume: Verdict | None = None) -> PlanDiff:
    """All differences, in the order of the groups; equal facts are counted and left out.

    `resume` is the verdict on a checkpoint, if the old side is one; otherwise it is that of `between`.
    """
    versions = old.version(), new.version()
    compared = list(_compare(old, new))
    changed = {change.group for change in compared if change.action is not Action.KEEP}
    shown = [change for change in compared if _is_shown(change, changed)]
    if not changed - {Group.EXPECT} and versions[0].plan_hash != versions[1].plan_hash:
        shown = [*compare_unlined(old, new), *(change for change in shown if change.group in changed)]
    return PlanDiff(
        old=versions[0],
        new=versions[1],
        changes=tuple(shown),
        num_unchanged=sum(change.action is Action.KEEP for change in compared),
        diagnostics=(*new.diagnostics, *([note] if (note := reduction_note(old, new)) else [])),
        resume=resume or between(old, new),
        new_warnings=tuple(_new_warnings(old, new)),
    )


def _new_warnings(old: Side, new: Side) -> Iterator[Diagnostic]:
    """Warnings that the old plan does not have, on whichever line."""
    known = Counter(map(_essence, old.diagnostics))
    for finding in new.diagnostics:
        if finding.severity is not Severity.WARNING:
            continue
        if known[_essence(finding)] > 0:
            known[_essence(finding)] -= 1
        else:
            yield finding


def _essence(finding: Diagnostic) -> tuple[str, str]:
    return finding.code.code, _LINE.sub("line", finding.primary.text)


def _compare(old: Side, new: Side) -> Iterator[Change]:
    own = (line for line in lines() if line.consequence is not Consequence.DERIVED)
    told = [change for line in own for change in compare_line(line, old, new)]
    yield from told
    yield from compare_resources(old, new)
    yield from compare_times(old, new)
    yield from compare_checkpoints(old, new, facts=told)
    yield from compare_sample_order(old, new, facts=told)
    yield from compare_reduction_order(old, new)
    yield from compare_expectations(old, new)


def _is_shown(change: Change, changed: set[Group]) -> bool:
    """All changes, and unchanged facts that readers expect next to a related change."""
    if change.action is not Action.KEEP:
        return True
    if change.note == UNKNOWN:
        return bool(changed)
    if change.name == SAMPLE_ORDER:
        return True
    if change.name == "model, optimizer":
        return Group.LAYOUT in changed or Group.CHECKPOINT in changed
    return change.name in (*KEY_LINES, PEAK, PHASE, TOTAL) and change.group in changed
