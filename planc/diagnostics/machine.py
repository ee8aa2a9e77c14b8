"""Diagnostics for programs: concise lines, JSON, and its schema."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from planc.diagnostics.diagnostic import Applicability, Diagnostic, Fix, Label, Severity
from planc.diagnostics.wrap import visible

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


DIALECT = "https://json-schema.org/draft/2020-12/schema"

_COUNT = {"type": "integer", "minimum": 0}
_ONE_BASED = {"type": "integer", "minimum": 1}


def closed(**properties: Any) -> dict[str, Any]:
    """The schema of an object that has exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def diagnostics_schema() -> dict[str, Any]:
    """The schema of `check --output-format json`. `$defs/diagnostic` is that of a line of json-lines."""
    document = closed(
        format_version={"const": FORMAT_VERSION},
        diagnostics={"type": "array", "items": {"$ref": "#/$defs/diagnostic"}},
        summary=closed(**{str(severity): _COUNT for severity in Severity}),
    )
    return {
        "$schema": DIALECT,
        "title": "Findings of planc check",
        **document,
        "$defs": {"diagnostic": diagnostic_schema()},
    }


def diagnostic_schema() -> dict[str, Any]:
    """The schema of a finding. Lines and columns count from 1; the end column is after the last one."""
    return closed(
        code={"type": "string", "pattern": "^P[0-9]{3}$"},
        name={"type": "string", "pattern": "^[a-z0-9]+(-[a-z0-9]+)*$"},
        severity={"enum": [str(severity) for severity in Severity]},
        message={"type": "string", "description": "what is wrong, the same text for every finding of a code"},
        **_PLACE,
        labels={"type": "array", "items": closed(**_PLACE), "description": "other places that take part"},
        notes={"type": "array", "items": {"type": "string"}},
        help={"type": ["string", "null"]},
        fix={"anyOf": [{"type": "null"}, _FIX]},
    )


_PLACE: dict[str, Any] = {
    "file": {"type": "string"},
    "line": _ONE_BASED,
    "column": _ONE_BASED,
    "end_line": _ONE_BASED,
    "end_column": _ONE_BASED,
    "text": {"type": "string", "description": "the particulars at this place; of a fix, what to write there"},
}
_FIX = closed(
    **_PLACE,
    applicability={
        "enum": [str(applicability) for applicability in Applicability],
        "description": "display-only: a template, to be written by a human",
    },
    is_safe={"type": "boolean", "description": "whether the fix's applicability is safe"},
)
