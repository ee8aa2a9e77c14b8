"""SARIF 2.1.0. https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/sarif-v2.1.0-errata01-os-complete.html"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from planc import __version__
from planc.diagnostics.diagnostic import Applicability, Code, Diagnostic, Fix, Severity
from planc.diagnostics.pages import page, url
from planc.diagnostics.report import PlanFindings, Report, explanation, message
from planc.source import Span

VERSION = "2.1.0"
SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"

_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}
_APPLICABILITIES = {
    Applicability.SAFE: "safe fix",
    Applicability.UNSAFE: "unsafe fix, for you to weigh",
    Applicability.DISPLAY_ONLY: "display-only fix, for you to fill in",
}


def render_sarif(report: Report) -> str:
    """One run, with a rule for each code that was found and a result for each finding."""
    codes = sorted({found.code for found in report.diagnostics}, key=lambda code: code.code)
    driver = {
        "name": "planc",
        "version": __version__,
        "rules": [_rule(code) for code in codes],
    }
    results = [
        _result(report, plan, found, rule_index=codes.index(found.code))
        for plan in report.plans
        for found in plan.diagnostics
    ]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return json.dumps({"$schema": SCHEMA, "version": VERSION, "runs": [run]}, indent=2) + "\n"


def _rule(code: Code) -> dict[str, Any]:
    text = page(code.code)
    rule = {
        "id": code.code,
        "name": code.name,
        "shortDescription": {"text": code.summary},
        "defaultConfiguration": {"level": _LEVELS[code.severity]},
    }
    if text is None:
        return rule
    return {**rule, "helpUri": url(code.code), "help": {"text": text, "markdown": text}}


def _result(report: Report, plan: PlanFindings, diagnostic: Diagnostic, *, rule_index: int) -> dict[str, Any]:
    text = "\n".join((_said(plan, diagnostic.primary.span, message(diagnostic)), *explanation(diagnostic)))
    result: dict[str, Any] = {
        "ruleId": diagnostic.code.code,
        "ruleIndex": rule_index,
        "level": _LEVELS[diagnostic.severity],
        "message": {"text": text},
        "locations": [_location(report, plan, diagnostic.primary.span)],
    }
    if diagnostic.secondary:
        result["relatedLocations"] = [
            {
                "id": number,
                **_location(report, plan, label.span),
                "message": {"text": _said(plan, label.span, label.text)},
            }
            for number, label in enumerate(diagnostic.secondary, 1)
        ]
    # A replacement in `--set` would change no file.
    if diagnostic.fix is not None and plan.is_in_file(diagnostic.fix.span):
        result["fixes"] = [_fix(report, diagnostic.fix)]
    return result


def _said(plan: PlanFindings, span: Span, text: str) -> str:
    """The text, after its location if that is not a file and so can't be a region."""
    return text if plan.is_in_file(span) else f"{span}: {text}"


def _location(report: Report, plan: PlanFindings, span: Span) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(report.path(plan.file_of(span)))}}
    if plan.is_in_file(span):
        physical["region"] = _region(span)
    return {"physicalLocation": physical}


def _fix(report: Report, fix: Fix) -> dict[str, Any]:
    kind = _APPLICABILITIES[fix.applicability]
    replacement = {"deletedRegion": _region(fix.span), "insertedContent": {"text": fix.replacement}}
    change = {
        "artifactLocation": {"uri": _uri(report.path(fix.span.file))},
        "replacements": [replacement],
    }
    what = f"write `{fix.replacement}`" if fix.replacement else "remove"
    return {"description": {"text": f"{what} ({kind})"}, "artifactChanges": [change]}


def _region(span: Span) -> dict[str, int]:
    return {
        "startLine": span.line,
        "startColumn": span.column,
        "endLine": span.end_line,
        "endColumn": span.end_column,
    }


def _uri(path: str) -> str:
    """A path as a URI reference: `file:` where it is absolute, else relative to the repository."""
    quoted = quote(path, errors="surrogateescape")
    return f"file://{quoted}" if path.startswith("/") else quoted
