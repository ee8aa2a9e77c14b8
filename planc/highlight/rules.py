"""Syntax highlighting of plans: one list of patterns for the Pygments lexer and the TextMate grammar.

Patterns keep to what Python's `re` and Oniguruma share, and never look past their line.
"""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Any

from planc.record import record


class Kind(StrEnum):
    """Kinds of text; the value is the TextMate scope, without the language at its end."""

    COMMENT = "comment.line.number-sign"
    STRING = "string.quoted.double"
    KEYWORD = "keyword.control"
    CONSTANT = "constant.language"
    TYPE = "storage.type"
    BLOCK = "entity.name.type.block"
    KEY = "variable.other.property"
    CALL = "entity.name.function"
    NAME = "variable.other"
    FLOAT = "constant.numeric.float"
    INTEGER = "constant.numeric.integer"
    UNIT = "keyword.other.unit"
    OPERATOR = "keyword.operator"
    PUNCTUATION = "punctuation"


@record
class Rule:
    """A pattern and what its groups are, in order; without groups, what its whole match is."""

    pattern: str
    kinds: tuple[Kind, ...]


OPENING_KEYWORDS = ("extends", "import", "extension", "as", "param", "use", "override", "on")
"""Words that a name or a string follows; anywhere else they are names."""
CONSTANTS = ("true", "false")

_NAME = "[A-Za-z_][A-Za-z0-9_]*"
_DIGITS = "-?[0-9](?:_?[0-9])*"
_FLOAT = rf"{_DIGITS}(?:\.[0-9](?:_?[0-9])*(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)"
# A unit may follow at once, but the rest of a number is none.
_UNIT = rf"(?!_?[0-9]|[eE][+-]?[0-9])[ \t]*({_NAME}|%)"
_PATH = rf"{_NAME}(?:[ \t]*\.[ \t]*{_NAME})*"
_ON = rf"on[ \t]+{_NAME}(?:[ \t]*,[ \t]*{_NAME})*"

RULES: tuple[Rule, ...] = (
    Rule(r"#[^\r\n]*", (Kind.COMMENT,)),
    Rule(r'"[^"\r\n]*"', (Kind.STRING,)),
    Rule(rf'\b(?:{"|".join(OPENING_KEYWORDS)})\b(?=[ \t]+[A-Za-z_]|[ \t]*")', (Kind.KEYWORD,)),
    Rule(rf'\b{_NAME}\b(?=[ \t]*(?:"[^"\r\n]*")?[ \t]*(?:{_ON}[ \t]*)?\{{)', (Kind.BLOCK,)),
    Rule(rf'\b{_NAME}\b(?=[ \t]*"[^"\r\n]*")', (Kind.BLOCK,)),
    Rule(rf"\b{_PATH}\b(?=[ \t]*=(?!=))", (Kind.KEY,)),
    Rule(rf"(:)[ \t]*({_NAME})", (Kind.PUNCTUATION, Kind.TYPE)),
    Rule(rf"({_FLOAT}){_UNIT}", (Kind.FLOAT, Kind.UNIT)),
    Rule(_FLOAT, (Kind.FLOAT,)),
    Rule(rf"({_DIGITS}){_UNIT}", (Kind.INTEGER, Kind.UNIT)),
    Rule(_DIGITS, (Kind.INTEGER,)),
    Rule(rf"\b(?:{'|'.join(CONSTANTS)})\b", (Kind.CONSTANT,)),
    Rule(rf"\b{_NAME}\b(?=[ \t]*\()", (Kind.CALL,)),
    Rule(_NAME, (Kind.NAME,)),
    Rule(r"->|==|!=|<=|>=|<|>|=|\.\.|[-+*/]", (Kind.OPERATOR,)),
    Rule(r"[{}()\[\],:.]", (Kind.PUNCTUATION,)),
)
"""The first that matches wins."""


FILE = Path(__file__).parent / "plan.tmLanguage.json"
"""The output of `grammar_json`; a test holds them equal."""


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
