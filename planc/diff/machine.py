"""A difference as JSON, and its JSON Schema."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from planc.diagnostics import Severity
from planc.diagnostics.machine import DIALECT, closed, diagnostic_schema, render_json
from planc.diff.difference import Action, Group, PlanDiff, State

FORMAT_VERSION = 1


def render_diff_json(difference: PlanDiff) -> str:
    """One JSON document. `diagnostics` are the new plan's, as in `check --output-format json`."""
    document = {
        "format_version": FORMAT_VERSION,
        "same_meaning": difference.same_meaning,
        "resume": asdict(difference.resume) if difference.resume else None,
        "old": asdict(difference.old),
        "new": asdict(difference.new),
        "changes": [
            {**asdict(change), "action": change.action.name.lower()} for change in difference.changes
        ],
        "summary": {"changed": difference.num_changed, "unchanged": difference.num_unchanged},
        "diagnostics": json.loads(render_json(difference.diagnostics))["diagnostics"],
    }
    return json.dumps(document, indent=2) + "\n"


_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}
_VALUE = {"type": ["string", "null"], "description": "null if the value is absent"}


def diff_schema() -> dict[str, Any]:
    """The JSON Schema of `diff --output-format json`."""
    document = closed(
        format_version={"const": FORMAT_VERSION},
        same_meaning={"type": "boolean"},
        resume={"anyOf": [{"type": "null"}, {"$ref": "#/$defs/verdict"}]},
        old={"$ref": "#/$defs/version"},
        new={"$ref": "#/$defs/version"},
        changes={"type": "array", "items": {"$ref": "#/$defs/change"}},
        summary=closed(changed=_COUNT, unchanged=_COUNT),
        diagnostics={"type": "array", "items": {"$ref": "#/$defs/diagnostic"}},
    )
    definitions = {
        "version": _version(),
        "verdict": _verdict(),
        "change": _change(),
        "diagnostic": diagnostic_schema(),
    }
    return {"$schema": DIALECT, "title": "A difference of planc diff", **document, "$defs": definitions}


def _version() -> dict[str, Any]:
    return closed(
        name=_TEXT,
        plan_hash={"type": "string", "pattern": "^[0-9a-f]{64}$"},
        world_size={"type": "integer", "minimum": 1},
        num_errors=_COUNT,
        note=_TEXT,
    )


def _verdict() -> dict[str, Any]:
    """The schema of the verdict; null if the old plan saves no checkpoints, or if neither plan resumes."""
    names = {"type": "array", "items": _TEXT}
    return closed(
        state={"enum": [str(state) for state in State]},
        reason=_TEXT,
        help=_TEXT,
        allow={**names, "description": "the names to pass to --allow-change for the run to resume"},
        notes={**names, "description": "the changes that the run reports when it resumes"},
    )


def _change() -> dict[str, Any]:
    finding = closed(
        code=_TEXT,
        severity={"enum": [str(severity) for severity in Severity]},
        place=_TEXT,
        breaks={"type": "boolean", "description": "whether the finding is a broken expectation"},
    )
    return closed(
        group={"enum": [str(group) for group in Group]},
        action={"enum": [action.name.lower() for action in Action]},
        name=_TEXT,
        old=_VALUE,
        new=_VALUE,
        note=_TEXT,
        place={"type": "string", "description": "its place in the new plan, or for a removal in the old one"},
        findings={"type": "array", "items": finding},
    )
