"""The TextMate grammar of plans, as VS Code, Sublime Text, GitHub and others read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from planc.highlight.rules import RULES, Kind, Rule

FILE = Path(__file__).parent / "plan.tmLanguage.json"
"""What `grammar_json` gave; a test holds them equal."""


def grammar_json() -> str:
    """The grammar's JSON text."""
    grammar = {
        "name": "planc plan",
        "scopeName": "source.plan",
        "fileTypes": ["plan"],
        "patterns": [_pattern(rule) for rule in RULES],
    }
    return json.dumps(grammar, indent=2) + "\n"


def _pattern(rule: Rule) -> dict[str, Any]:
    if len(rule.kinds) == 1:
        return {"match": rule.pattern, "name": _scope(rule.kinds[0])}
    captures = {str(number): {"name": _scope(kind)} for number, kind in enumerate(rule.kinds, 1)}
    return {"match": rule.pattern, "captures": captures}


def _scope(kind: Kind) -> str:
    return f"{kind}.plan"
