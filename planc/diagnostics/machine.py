"""Diagnostics for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from planc.diagnostics.diagnostic import Diagnostic, Fix, Label, Severity
from planc.diagnostics.visible import visible

FORMAT_VERSION = 1


def render_json(diagnostics: Sequence[Diagnostic]) -> str:
    """One JSON document: `format_version`, `diagnostics`, `summary`. Lines and columns count from 1."""
    document = {
        "format_version": FORMAT_VERSION,
        "diagnostics": [_entry(diagnostic) for diagnostic in diagnostics],
        "summary": {
            str(severity): sum(diagnostic.severity is severity for diagnostic in diagnostics)
            for severity in Severity
        },
    }
    return json.dumps(document, indent=2) + "\n"


def render_json_lines(diagnostics: Sequence[Diagnostic]) -> str:
    """One JSON object a line and finding, as in `diagnostics` of the document."""
    return "".join(json.dumps(_entry(diagnostic)) + "\n" for diagnostic in diagnostics)


def render_concise(diagnostics: Sequence[Diagnostic]) -> str:
    """One line a finding: `file:line:column: severity[code] summary: particulars`."""
    lines = []
    for diagnostic in diagnostics:
        text = f": {diagnostic.primary.text}" if diagnostic.primary.text else ""
        head = f"{diagnostic.primary.span}: {diagnostic.severity}[{diagnostic.code.code}]"
        lines.append(visible(f"{head} {diagnostic.code.summary}{text}") + "\n")
    return "".join(lines)


def _entry(diagnostic: Diagnostic) -> dict[str, Any]:
    fix = diagnostic.fix
    return {
        "code": diagnostic.code.code,
        "name": diagnostic.code.name,
        "severity": str(diagnostic.severity),
        "message": diagnostic.code.summary,
        **_place(diagnostic.primary),
        "labels": [_place(label) for label in diagnostic.secondary],
        "notes": list(diagnostic.notes),
        "help": diagnostic.help,
        "fix": fix and _fix(fix),
    }


def _fix(fix: Fix) -> dict[str, Any]:
    return {
        **_place(Label(fix.span, fix.replacement)),
        "applicability": str(fix.applicability),
        "is_safe": fix.is_safe,
    }


def _place(label: Label) -> dict[str, Any]:
    span = label.span
    return {
        "file": span.file,
        "line": span.line,
        "column": span.column,
        "end_line": span.end_line,
        "end_column": span.end_column,
        "text": label.text,
    }
