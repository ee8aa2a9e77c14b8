"""A difference as a review comment."""

from __future__ import annotations

import re
from collections.abc import Iterator

from planc.diff.difference import Change, Group, PlanDiff
from planc.diff.text import consequence, count, finding_line, heading, middle, remaining, resume_lines
from planc.tables import printable

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
            lines.extend(_group(group, [change for change in difference.changes if change.group is group]))
    for title, findings in remaining(difference):
        listed = (f"- {escape(finding_line(finding))}" for finding in findings)
        lines.extend([f"**{title.capitalize()}**", "", *listed, ""])
    lines.append(count(difference))
    return "\n".join(lines) + "\n"


def _group(group: Group, changes: list[Change]) -> Iterator[str]:
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
