"""The Pygments lexer of plans, which an installed planc announces under `pygments.lexers`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from pygments.lexer import RegexLexer
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, String, Whitespace

from planc.highlight.rules import RULES, Kind, Rule

TOKENS = {
    Kind.COMMENT: Comment.Single,
    Kind.STRING: String.Double,
    Kind.KEYWORD: Keyword,
    Kind.CONSTANT: Keyword.Constant,
    Kind.TYPE: Keyword.Type,
    Kind.BLOCK: Name.Class,
    Kind.KEY: Name.Attribute,
    Kind.CALL: Name.Function,
    Kind.NAME: Name,
    Kind.FLOAT: Number.Float,
    Kind.INTEGER: Number.Integer,
    Kind.UNIT: Name.Builtin,
    Kind.OPERATOR: Operator,
    Kind.PUNCTUATION: Punctuation,
}
"""Pygments' token of each kind."""


def _action(rule: Rule) -> Any:
    """A token for a rule without groups, else a callback that also gives the space between groups."""
    if len(rule.kinds) == 1:
        return TOKENS[rule.kinds[0]]
    return _groups(rule)


def _groups(rule: Rule) -> Callable[[RegexLexer, re.Match[str], Any], Iterator[tuple[int, Any, str]]]:
    def tokens(
        lexer: RegexLexer, match: re.Match[str], context: Any = None
    ) -> Iterator[tuple[int, Any, str]]:
        end = match.start()
        for number, kind in enumerate(rule.kinds, 1):
            if match.start(number) > end:
                yield end, Whitespace, match.string[end : match.start(number)]
            yield match.start(number), TOKENS[kind], match[number]
            end = match.end(number)

    return tokens


class PlanLexer(RegexLexer):  # type: ignore[misc]  # Pygments has no types.
    """Tokens of a `.plan`; Error for what no plan can hold."""

    name = "planc plan"
    url = "https://pypi.org/project/planc/"
    aliases: ClassVar[list[str]] = ["plan"]
    filenames: ClassVar[list[str]] = ["*.plan"]
    tokens: ClassVar[dict[str, Any]] = {
        "root": [(r"\s+", Whitespace), *((rule.pattern, _action(rule)) for rule in RULES)]
    }
