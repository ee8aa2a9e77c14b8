"""A difference as text."""

from __future__ import annotations

from collections.abc import Iterator

from planc.diagnostics import Diagnostic, Severity
from planc.diff.difference import Action, Change, Finding, Group, PlanDiff
from planc.tables import SIZE_UNITS, plural, printable

_COLOURS = {Action.ADD: "32", Action.CHANGE: "33", Action.REMOVE: "31", Action.REPLACE: "35"}
_MAX_NAME_WIDTH = 44


def render_text(found: PlanDiff, *, colour: bool) -> str:
    """A heading, the groups that changed, the new plan's other errors, its new warnings, and the count."""
    lines = [heading(found), *(printable(line) for line in resume_lines(found)), ""]
    if found.same_meaning:
        lines.append("no semantic change")
    else:
        for group in Group:
            lines.extend(_group(group, [c for c in found.changes if c.group is group], colour=colour))
    for title, findings in remaining(found):
        lines.extend([title.upper(), *(f"    {finding_line(finding)}" for finding in findings)])
    lines.append(count(found))
    return "\n".join(lines) + "\n"


def heading(found: PlanDiff) -> str:
    """`planc diff  llama.plan  3f9c1a2 -> 8be07d4   world size 64 (unchanged)`."""
    old, new = found.old, found.new
    names = new.name if old.name == new.name else f"{old.name} -> {new.name}"
    sizes = (
        f"{new.world_size:_} (unchanged)"
        if old.world_size == new.world_size
        else f"{old.world_size:_} -> {new.world_size:_}"
    )
    broken = "   (the old plan fails its check)" if old.num_errors else ""
    hashes = f"{old.plan_hash[:7]} -> {new.plan_hash[:7]}"
    notes = "".join(f"   ({side.name}: {side.note})" for side in (old, new) if side.note)
    return printable(f"planc diff  {names}  {hashes}   world size {sizes}{broken}{notes}")


def resume_lines(found: PlanDiff) -> Iterator[str]:
    """What a run of the new plan does with the checkpoint, the reason, and the help."""
    if (verdict := found.resume) is None:
        return
    yield f"resume: {verdict.state}{f': {verdict.reason}' if verdict.reason else ''}"
    if verdict.help:
        yield f"help: {verdict.help}"


def _group(group: Group, changes: list[Change], *, colour: bool) -> Iterator[str]:
    if not changes:
        return
    yield group.heading.upper()
    width = min(_MAX_NAME_WIDTH, max(len(change.name) for change in changes))
    middles = [middle(change) for change in changes]
    middle_width = min(_MAX_NAME_WIDTH, max(len(text) for text in middles))
    for change, text in zip(changes, middles, strict=True):
        mark = f"{change.action:>3}"
        if colour and change.action in _COLOURS:
            mark = f"\033[{_COLOURS[change.action]}m{mark}\033[0m"
        tail = "  ".join(part for part in (*map(consequence, change.findings), change.place) if part)
        row = f"{change.name:<{width}}  {text:<{middle_width}}  {tail}"
        yield f"{mark} {printable(row)}".rstrip()


def middle(change: Change) -> str:
    """`4 -> 8`, `+ value`, a note, or both."""
    match change.old, change.new:
        case None, None:
            values = ""
        case None, added:
            values = str(added)
        case removed, None:
            values = str(removed)
        case same, other if same == other:
            values = f"{same}   unchanged"
        case before, after:
            values = f"{_without_unit_of(after, before)} -> {after}"
    return "  ".join(part for part in (values, change.note) if part)


def _without_unit_of(other: str, text: str) -> str:
    """`41.2` for `41.2 GiB`, if the other value is `38.9 GiB`."""
    number, _, unit = text.rpartition(" ")
    return number if unit in SIZE_UNITS and other.endswith(f" {unit}") else text


def consequence(finding: Finding) -> str:
    """``breaks `expect`, llama.plan:91 [P702 error]``, or `[P412 warning]`."""
    code = f"[{finding.code} {finding.severity}]"
    return f"breaks `expect`, {finding.place} {code}" if finding.breaks else code


def remaining(found: PlanDiff) -> Iterator[tuple[str, list[Diagnostic]]]:
    """The new plan's errors that no change above shows, and its new warnings, each under a title."""
    mentioned = {(finding.code, finding.place) for change in found.changes for finding in change.findings}
    rest = [
        finding
        for finding in errors(found)
        if (finding.code.code, f"{finding.primary.span.file}:{finding.primary.span.line}") not in mentioned
    ]
    if rest:
        yield "errors", rest
    # A change shows only the code of a warning.
    if found.new_warnings:
        is_all = len(found.new_warnings) == _number(found, Severity.WARNING)
        yield "warnings" if is_all else "new warnings", list(found.new_warnings)


def finding_line(finding: Diagnostic) -> str:
    """`x.plan:12:3 [P412] summary: particulars`."""
    text = f": {finding.primary.text}" if finding.primary.text else ""
    return f"{finding.primary.span} [{finding.code.code}] {finding.code.summary}{text}"


def errors(found: PlanDiff) -> tuple[Diagnostic, ...]:
    return tuple(finding for finding in found.diagnostics if finding.severity is Severity.ERROR)


def count(found: PlanDiff) -> str:
    """`Diff: 5 changed, 30 unchanged. 1 error, 2 warnings (1 new).`"""
    parts = []
    for severity in Severity:
        if number := _number(found, severity):
            parts.append(plural(number, str(severity)))
            if severity is Severity.WARNING and len(found.new_warnings) < number:
                parts[-1] += f" ({len(found.new_warnings) or 'none'} new)"
    ending = f" {', '.join(parts)}." if parts else ""
    return f"Diff: {found.num_changed} changed, {found.num_unchanged} unchanged.{ending}"


def _number(found: PlanDiff, severity: Severity) -> int:
    return sum(finding.severity is severity for finding in found.diagnostics)
