"""The difference between two plans, with pictures of what moved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planc.diagnostics import Diagnostic
from planc.diff.difference import Action, Change, Group, PlanDiff
from planc.diff.side import Side
from planc.diff.text import consequence, count, finding_line, heading, middle, remaining, resume_lines
from planc.estimate.layout import ParameterLayout
from planc.figures import needs
from planc.graph.text import fold
from planc.report.charts import Bar, bars
from planc.report.html import Html, details, element, markup, paragraph
from planc.report.layers import parameter_layout
from planc.tables import plural
from planc.vocab import MeshDim


def difference_section(difference: PlanDiff, old: Side, new: Side) -> Html:
    """The heading, memory and layout before and after, and a table for each group that changed."""
    lines = [paragraph(line) for line in (heading(difference), *resume_lines(difference))]
    groups = [] if difference.same_meaning else [*_groups(difference)]
    pictures = [] if difference.same_meaning else [_memory(old, new), _layout(old, new)]
    nothing = [paragraph("no semantic change")] if difference.same_meaning else []
    others = (
        markup(element("h3", title), finding_list(findings)) for title, findings in remaining(difference)
    )
    return markup(*lines, *nothing, *pictures, *groups, *others, paragraph(count(difference)))


def finding_list(findings: Sequence[Diagnostic]) -> Html:
    """Findings, each in one line."""
    return element("ul", *(element("li", finding_line(finding)) for finding in findings))


def _groups(difference: PlanDiff) -> Iterator[Html]:
    for group in Group:
        changes = [change for change in difference.changes if change.group is group]
        if changes:
            body = element("tbody", *map(_row, changes))
            head = element("thead", element("tr", *(element("th", name, scope="col") for name in _COLUMNS)))
            shown = element("table", element("caption", group.heading), head, body, class_="changes")
            yield element("div", shown, class_="scroll", tabindex="0", role="group", aria_label=group.heading)


_COLUMNS = ("", "what", "change", "where")


def _row(change: Change) -> Html:
    where = "; ".join(part for part in (*map(consequence, change.findings), change.place) if part)
    cells = (change.action.value, change.name, middle(change), where)
    kind = change.action.name.lower() if change.action is not Action.KEEP else None
    return element("tr", *(element("td", cell) for cell in cells), class_=kind)


def _memory(old: Side, new: Side) -> Html:
    """The parts of both peaks; nothing if a model is not here."""
    before, after = old.estimate, new.estimate
    if before is None or after is None:
        return Html("")
    drawn = []
    for name in dict(after.memory.peak_parts) | dict(before.memory.peak_parts):
        was, now = needs.peak_part(before, name), needs.peak_part(after, name)
        drawn.append(Bar(name, _change(was.text, now.text), (was.count, now.count)))
    was, now = needs.peak_memory(before), needs.peak_memory(after)
    drawn.append(Bar("peak", _change(was.text, now.text), (was.count, now.count), is_total=True))
    caption = "Memory per rank at the peak: before (outlined, above) and after (filled, below)"
    return element("figure", bars(drawn, caption=caption))


def _change(was: str, now: str) -> str:
    return now if was == now else f"{was} → {now}"


def _layout(old: Side, new: Side) -> Html:
    """Parameters whose shards differ, before and after, with repeated layers folded."""
    before, after = old.layouts(), new.layouts()
    if before is None or after is None:
        return Html("")
    pairs = {
        fqn: (before[fqn], after[fqn])
        for fqn in after
        if fqn in before and _held(before[fqn]) != _held(after[fqn])
    }
    if not pairs:
        return paragraph("Rank 0 holds the same shard of every parameter that both models have.")
    groups: dict[object, list[str]] = {}
    for fqn, (was, now) in pairs.items():
        groups.setdefault((_held(was), _held(now)), []).append(fqn)
    sizes = old.graph.size(MeshDim.TP), new.graph.size(MeshDim.TP)
    rows = [
        _pair(name, *pairs[fqns[0]], sizes=sizes)
        for members in groups.values()
        for name, fqns in fold(members).items()
    ]
    caption = f"{plural(len(pairs), 'parameter')} with another shard on rank 0"
    body = details("Before and after", element("ul", *rows, class_="layer pairs"), is_open=True)
    return element("figure", element("figcaption", caption), body)


def _held(parameter: ParameterLayout) -> object:
    shapes = parameter.shape, parameter.tp_shape, parameter.local_shape, parameter.last_shape
    return *shapes, parameter.placements, parameter.dtype


def _pair(name: str, was: ParameterLayout, now: ParameterLayout, *, sizes: tuple[int, int]) -> Html:
    sides = ("before", was, sizes[0]), ("after", now, sizes[1])
    pictures = (parameter_layout(one, tp=tp, label=label) for label, one, tp in sides)
    return element("li", element("div", element("b", name)), *pictures)
