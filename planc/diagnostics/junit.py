"""JUnit XML: a suite for each plan, a case for each finding. Only errors fail, as with the exit code."""

from __future__ import annotations

from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from planc.diagnostics.diagnostic import Diagnostic, Severity
from planc.diagnostics.report import PlanFindings, Report, explanation, message
from planc.diagnostics.wrap import visible


def render_junit(report: Report) -> str:
    """One XML document. A plan without findings has a single case, which passes."""
    root = Element("testsuites", name="planc")
    for plan in report.plans:
        _suite(root, report, plan)
    for count in ("tests", "failures"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in root)))
    root.set("errors", "0")
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _suite(root: Element, report: Report, plan: PlanFindings) -> None:
    name = visible(report.path(plan.file))
    num_failures = sum(diagnostic.severity is Severity.ERROR for diagnostic in plan.diagnostics)
    suite = SubElement(
        root,
        "testsuite",
        name=name,
        tests=str(max(1, len(plan.diagnostics))),
        failures=str(num_failures),
        errors="0",
    )
    if not plan.diagnostics:
        SubElement(suite, "testcase", name="planc check", classname=name)
    for diagnostic in plan.diagnostics:
        _case(suite, report, plan, diagnostic)


def _case(suite: Element, report: Report, plan: PlanFindings, diagnostic: Diagnostic) -> None:
    span = diagnostic.primary.span
    path = visible(report.path(plan.file_of(span)))
    where = visible(f"{path}:{span.line}:{span.column}" if plan.is_in_file(span) else str(span))
    case = SubElement(
        suite,
        "testcase",
        name=f"{diagnostic.code.code} {diagnostic.code.name} {where}",
        classname=suite.get("name", ""),
        file=path,
    )
    if plan.is_in_file(span):
        case.set("line", str(span.line))
    summary = visible(message(diagnostic))
    lines = (where, summary, *(visible(line) for line in explanation(diagnostic)))
    if diagnostic.severity is Severity.ERROR:
        SubElement(case, "failure", type=diagnostic.code.code, message=summary).text = "\n".join(lines)
    else:
        lines = (f"{diagnostic.severity}: {where}", *lines[1:])
        SubElement(case, "system-out").text = "\n".join(lines)
