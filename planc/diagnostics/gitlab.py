"""GitLab's Code Quality report. https://docs.gitlab.com/ci/testing/code_quality/#code-quality-report-format"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import Any

from planc.diagnostics.diagnostic import Diagnostic, Severity
from planc.diagnostics.report import PlanFindings, Report, message

_SEVERITIES = {Severity.ERROR: "major", Severity.WARNING: "minor", Severity.NOTE: "info"}


def render_gitlab(report: Report) -> str:
    """A JSON list of findings, each with a fingerprint."""
    seen: Counter[str] = Counter()
    entries = []
    for plan in report.plans:
        for diagnostic in plan.diagnostics:
            identity = fingerprint(report, plan, diagnostic)
            number = seen[identity]
            seen[identity] += 1
            entries.append(
                _entry(report, plan, diagnostic, identity if number == 0 else f"{identity}-{number}")
            )
    return json.dumps(entries, indent=2) + "\n"


def fingerprint(report: Report, plan: PlanFindings, diagnostic: Diagnostic) -> str:
    """A hash of the code, the file, the line's text and what is said of it.

    Line numbers are left out: GitLab compares two commits by fingerprints, and a finding that only moved is
    not new.
    """
    span = diagnostic.primary.span
    place = report.path(span.file) if plan.is_in_file(span) else f"{report.path(plan.file)} {span.file}"
    parts = (diagnostic.code.code, place, plan.line_of(span), diagnostic.primary.text)
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _entry(report: Report, plan: PlanFindings, diagnostic: Diagnostic, identity: str) -> dict[str, Any]:
    span = diagnostic.primary.span
    text = message(diagnostic)
    is_in_file = plan.is_in_file(span)
    return {
        "description": text if is_in_file else f"{span}: {text}",
        "check_name": f"{diagnostic.code.code} {diagnostic.code.name}",
        "fingerprint": identity,
        "severity": _SEVERITIES[diagnostic.severity],
        "location": {
            "path": report.path(plan.file_of(span)),
            "lines": {"begin": span.line, "end": span.end_line} if is_in_file else {"begin": 1},
        },
    }
