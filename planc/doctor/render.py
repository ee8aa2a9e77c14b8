"""Render a report for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from planc.diagnostics import Severity
from planc.diagnostics.machine import render_json
from planc.diagnostics.schema import DIALECT, closed, diagnostic_schema
from planc.doctor.examination import Check, Report, Section, Status
from planc.doctor.machine import Machine
from planc.tables import render_table

FORMAT_VERSION = 1


def report_text(report: Report) -> str:
    """One table: status, name, what was found, what is required, and why."""
    return render_table([row for section in Section for row in _rows(report, section)])


def report_data(report: Report, machine: Machine) -> dict[str, Any]:
    """The report as JSON data."""
    usable = machine.torch.backends if machine.torch else ()
    findings = json.loads(render_json(report.diagnostics))
    return {
        "format_version": FORMAT_VERSION,
        "os": machine.os,
        "backends": {name: name in usable for name in ("gloo", "nccl")},
        "checks": [_check(check) for check in report.checks],
        "diagnostics": findings["diagnostics"],
        "summary": findings["summary"],
    }


def report_schema() -> dict[str, Any]:
    """The JSON Schema of `report_data`."""
    text = {"type": "string"}
    count = {"type": "integer", "minimum": 0}
    check = closed(
        section={"enum": [str(section) for section in Section]},
        name=text,
        found=text,
        required=text,
        reason=text,
        status={"enum": [str(status) for status in Status]},
        ok={"type": "boolean"},
        codes={"type": "array", "items": {"type": "string", "pattern": "^P[0-9]{3}$"}},
    )
    document = closed(
        format_version={"const": FORMAT_VERSION},
        os=text,
        backends=closed(gloo={"type": "boolean"}, nccl={"type": "boolean"}),
        checks={"type": "array", "items": check},
        diagnostics={"type": "array", "items": {"$ref": "#/$defs/diagnostic"}},
        summary=closed(**{str(severity): count for severity in Severity}),
    )
    return {
        "$schema": DIALECT,
        "title": "A report of planc doctor",
        **document,
        "$defs": {"diagnostic": diagnostic_schema()},
    }


def _rows(report: Report, section: Section) -> Iterator[tuple[str, ...]]:
    for check in report.checks:
        if check.section is section:
            required = f"needs {check.required}" if check.required else ""
            found = ", ".join(check.observed.lines)
            yield str(check.status), check.observed.name, found, required, check.reason


def _check(check: Check) -> dict[str, Any]:
    return {
        "section": str(check.section),
        "name": check.observed.name,
        "found": check.observed.text,
        "required": check.required,
        "reason": check.reason,
        "status": str(check.status),
        "ok": check.status is not Status.ERROR,
        "codes": [problem.code.code for problem in check.problems],
    }
