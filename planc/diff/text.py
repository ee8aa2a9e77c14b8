"""A difference as text, and as a review comment in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator

from planc.diagnostics import Diagnostic, Severity
from planc.diff.difference import Action, Change, Finding, Group, PlanDiff
from planc.tables import SIZE_UNITS, plural, printable

_COLOURS = {Action.ADD: "32", Action.CHANGE: "33", Action.REMOVE: "31", Action.REPLACE: "35"}
_MAX_NAME_WIDTH = 44


def render_text(difference: PlanDiff, *, colour: bool) -> str:
    """A heading, the groups that changed, the new plan's other errors, its new warnings, and the count."""
    lines = [heading(difference), *(printable(line) for line in resume_lines(difference)), ""]
    if difference.same_meaning:
        lines.append("no semantic change")
    else:
        for group in Group:
            lines.extend(_group(group, [c for c in difference.changes if c.group is group], colour=colour))
    for title, findings in remaining(difference):
        lines.extend([title.upper(), *(f"    {finding_line(finding)}" for finding in findings)])
    lines.append(count(difference))
    return "\n".join(lines) + "\n"


def heading(difference: PlanDiff) -> str:
    """`planc diff  llama.plan  3f9c1a2 -> 8be07d4   world size 64 (unchanged)`."""
    old, new = difference.old, difference.new
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


def resume_lines(difference: PlanDiff) -> Iterator[str]:
    """Describe what a run of the new plan does with the checkpoint, the reason, and the help."""
    if (verdict := difference.resume) is None:
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


def remaining(difference: PlanDiff) -> Iterator[tuple[str, list[Diagnostic]]]:
    """The new plan's errors that no change above shows, and its new warnings, each under a title."""
    mentioned = {
        (finding.code, finding.place) for change in difference.changes for finding in change.findings
    }
    rest = [
        finding
        for finding in errors(difference)
        if (finding.code.code, f"{finding.primary.span.file}:{finding.primary.span.line}") not in mentioned
    ]
    if rest:
        yield "errors", rest
    # A change shows only the code of a warning.
    if difference.new_warnings:
        is_all = len(difference.new_warnings) == _number(difference, Severity.WARNING)
        yield "warnings" if is_all else "new warnings", list(difference.new_warnings)


def finding_line(finding: Diagnostic) -> str:
    """`x.plan:12:3 [P412] summary: particulars`."""
    text = f": {finding.primary.text}" if finding.primary.text else ""
    return f"{finding.primary.span} [{finding.code.code}] {finding.code.summary}{text}"


def errors(difference: PlanDiff) -> tuple[Diagnostic, ...]:
    return tuple(finding for finding in difference.diagnostics if finding.severity is Severity.ERROR)


def count(difference: PlanDiff) -> str:
    """`Diff: 5 changed, 30 unchanged. 1 error, 2 warnings (1 new).`"""
    parts = []
    for severity in Severity:
        if number := _number(difference, severity):
            parts.append(plural(number, str(severity)))
            if severity is Severity.WARNING and len(difference.new_warnings) < number:
                parts[-1] += f" ({len(difference.new_warnings) or 'none'} new)"
    ending = f" {', '.join(parts)}." if parts else ""
    return f"Diff: {difference.num_changed} changed, {difference.num_unchanged} unchanged.{ending}"


def _number(difference: PlanDiff, severity: Severity) -> int:
    return sum(finding.severity is severity for finding in difference.diagnostics)


_LIVE = re.compile(r"(?i)@(?=\w)|#(?=\d)|\bwww(?=\.)|\b[a-z][a-z0-9+.-]*:(?=//)")
"""Text that a forge turns into a mention, reference or link, unless a space of no width follows it."""


def render_markdown(difference: PlanDiff) -> str:
    """The heading as a title, a table for each group that changed, the count."""
    lines = [f"### {escape(heading(difference))}", ""]
    if resume := [*resume_lines(difference)]:
        lines.extend([*(f"{escape(line)}  " for line in resume), ""])
    if difference.same_meaning:
        lines.extend(["No semantic change.", ""])
    else:
        for group in Group:
            lines.extend(
                _markdown_group(group, [change for change in difference.changes if change.group is group])
            )
    for title, findings in remaining(difference):
        listed = (f"- {escape(finding_line(finding))}" for finding in findings)
        lines.extend([f"**{title.capitalize()}**", "", *listed, ""])
    lines.append(count(difference))
    return "\n".join(lines) + "\n"


def _markdown_group(group: Group, changes: list[Change]) -> Iterator[str]:
    if not changes:
        return
    yield f"**{group.heading.capitalize()}**"
    yield ""
    yield "| | what | change | where |"
    yield "|---|---|---|---|"
    for change in changes:
        mark = f"`{change.action}`" if change.action else ""
        where = "; ".join(part for part in (*map(consequence, change.findings), change.place) if part)
        cells = [mark, *map(escape, (change.name, middle(change), where))]
        yield f"| {' | '.join(cells)} |"
    yield ""


def escape(text: str) -> str:
    """Text that Markdown takes literally and that can't end a table cell."""
    text = printable(text)
    for character in "\\|*_<>[]`":
        text = text.replace(character, f"\\{character}")
    return _LIVE.sub(r"\g<0>&#8203;", text.replace("&", "&amp;"))
