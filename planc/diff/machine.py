"""A difference as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

from planc.diagnostics.machine import render_json
from planc.diff.difference import PlanDiff

FORMAT_VERSION = 1


def render_diff_json(found: PlanDiff) -> str:
    """One JSON document. `diagnostics` are the new plan's, as in `check --output-format json`."""
    document = {
        "format_version": FORMAT_VERSION,
        "same_meaning": found.same_meaning,
        "resume": asdict(found.resume) if found.resume else None,
        "old": asdict(found.old),
        "new": asdict(found.new),
        "changes": [{**asdict(change), "action": change.action.name.lower()} for change in found.changes],
        "summary": {"changed": found.num_changed, "unchanged": found.num_unchanged},
        "diagnostics": json.loads(render_json(found.diagnostics))["diagnostics"],
    }
    return json.dumps(document, indent=2) + "\n"
