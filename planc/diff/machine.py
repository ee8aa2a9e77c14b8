"""A difference as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

from planc.diagnostics.machine import render_json
from planc.diff.difference import PlanDiff

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
