"""The differences of many plans as one review comment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from planc.diagnostics import Diagnostic, Severity, has_errors
from planc.diff.difference import Group, PlanDiff
from planc.diff.side import Side
from planc.diff.text import escape, finding_line, render_markdown
from planc.figures import needs
from planc.figures import plan as of_plan
from planc.record import record
from planc.tables import plural

MARKER = "<!-- planc review -->"
"""The first line, invisible to readers, by which a later run finds the comment to replace."""

COLUMNS = ("plan", "what changes", "findings")

MAX_CHARACTERS = 60_000
"""GitHub rejects comments of more than 65 536 characters."""


@record
class Reviewed:
    """A plan in a change: its difference, or in `what` the reason for having none.

    `because` are changed files that the plan includes. `diagnostics` are the difference's, or the new plan's.
    """

    path: str
    found: PlanDiff | None = None
    what: str = ""
    because: tuple[str, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    sides: tuple[Side, Side] | None = None
    """The old plan and the new one, of a difference."""


def render_review(reviewed: Sequence[Reviewed], *, revision: str) -> str:
    """A table of all plans, then each semantic difference, up to the size limit of a comment."""
    lines = [MARKER, f"## Plans compared with {escape(revision)}", ""]
    if not reviewed:
        return "\n".join([*lines, "No plan changed."]) + "\n"
    lines.extend([f"| {' | '.join(COLUMNS)} |", "|---|---|---|"])
    lines.extend(f"| {' | '.join(map(escape, summary(plan)))} |" for plan in reviewed)
    text = "\n".join(lines) + "\n"
    left_out = []
    for plan in reviewed:
        section = "".join(f"\n{part}" for part in _section(plan))
        if len(text) + len(section) > MAX_CHARACTERS:
            left_out.append(plan.path)
        else:
            text += section
    if left_out:
        text += f"\n{plural(len(left_out), 'difference')} omitted from this long comment; see `planc diff`: "
        text += f"{', '.join(map(escape, left_out))}\n"
    return text


def what_is_new(side: Side | None) -> str:
    """`is new: world size 4, 804_992 parameters, 4_096 tokens per step, peak memory 31.79 MiB per rank`."""
    estimated = side.estimate if side else None
    if side is None or side.inventory is None or estimated is None:
        return "is new"
    figures = (
        f"world size {of_plan.world_size(side.graph).number}",
        f"{of_plan.parameters(side.inventory.num_parameters).number} parameters",
        f"{of_plan.tokens_per_step(side.graph).text} per step",
        f"peak memory {needs.peak_memory(estimated).text} per rank",
    )
    return f"is new: {', '.join(figures)}"


def summary(plan: Reviewed) -> tuple[str, str, str]:
    """A plan as COLUMNS name its cells."""
    because = f" (through {', '.join(plan.because)})" if plan.because else ""
    return plan.path, _what(plan) + because, _findings(plan)


def _what(plan: Reviewed) -> str:
    if plan.found is None:
        return plan.what
    if plan.found.same_meaning:
        return "no semantic change"
    return ", ".join(str(group) for group in Group if plan.found.differs_in(group))


def _findings(plan: Reviewed) -> str:
    severities = Counter(finding.severity for finding in plan.diagnostics)
    return ", ".join(
        plural(severities[severity], str(severity)) for severity in Severity if severities[severity]
    )


def _section(plan: Reviewed) -> Iterator[str]:
    """The difference; for a plan without one, its errors and warnings."""
    if plan.found is not None:
        if is_listed(plan):
            yield render_markdown(plan.found)
        return
    if findings := listed_findings(plan):
        yield f"### {escape(plan.path)} {escape(plan.what)}\n"
        for finding in findings:
            yield f"- {escape(finding_line(finding))}"
        yield ""


def is_listed(plan: Reviewed) -> bool:
    """Whether a plan's difference is shown: it has one in meaning, or new findings."""
    if plan.found is None:
        return False
    has_findings = plan.found.new_warnings or has_errors(plan.diagnostics)
    return not plan.found.same_meaning or bool(has_findings)


def listed_findings(plan: Reviewed) -> list[Diagnostic]:
    """The errors and warnings of a plan without a difference."""
    return [finding for finding in plan.diagnostics if finding.severity is not Severity.NOTE]
