"""Annotations in GitHub Actions: one workflow command a finding.

https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands
"""

from __future__ import annotations

from planc.diagnostics.diagnostic import Diagnostic, Severity
from planc.diagnostics.report import PlanFindings, Report, explanation, message
from planc.diagnostics.wrap import visible
from planc.source import Span

_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


def render_github(report: Report) -> str:
    """`::error file=...,line=...::message`, a line each.

    A code at one place is written once for all plans that include the place, as the first of them has it.
    """
    plans: dict[tuple[str, Span, str], list[PlanFindings]] = {}
    for plan in report.plans:
        for place in dict.fromkeys(_place(report, plan, found) for found in plan.diagnostics):
            plans.setdefault(place, []).append(plan)
    return "".join(
        _command(report, plan, found, num_plans=len(sharing))
        for plan in report.plans
        for found in plan.diagnostics
        if (sharing := plans[_place(report, plan, found)])[0] is plan
    )


def _place(report: Report, plan: PlanFindings, diagnostic: Diagnostic) -> tuple[str, Span, str]:
    span = diagnostic.primary.span
    return report.path(plan.file_of(span)), span, diagnostic.code.code


def _command(report: Report, plan: PlanFindings, diagnostic: Diagnostic, *, num_plans: int) -> str:
    span = diagnostic.primary.span
    properties = {
        "title": f"planc {diagnostic.code.code} {diagnostic.code.name}",
        "file": report.path(plan.file_of(span)),
    }
    lines = [message(diagnostic), *explanation(diagnostic)]
    if plan.is_in_file(span):
        properties |= {"line": str(span.line), "endLine": str(span.end_line)}
        if span.line == span.end_line:  # GitHub refuses columns for a range of lines
            properties |= {"col": str(span.column), "endColumn": str(span.end_column)}
        if num_plans > 1:
            lines.append(f"found in {num_plans} plans, starting with {report.path(plan.file)}")
    else:
        lines[0] = f"{span}: {lines[0]}"
    named = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    text = "\n".join(visible(line) for line in lines)
    return f"::{_COMMANDS[diagnostic.severity]} {named}::{_data(text)}\n"


def _data(text: str) -> str:
    """A message with what would end it escaped, as the runner's own toolkit does."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
