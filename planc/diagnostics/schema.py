"""The JSON Schema of findings as `machine` writes them."""

from __future__ import annotations

from typing import Any

from planc.diagnostics.diagnostic import Applicability, Severity
from planc.diagnostics.machine import FORMAT_VERSION

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
