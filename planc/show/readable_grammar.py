"""The grammar for readers: rules in the notation of `plan.lark`, without details for Lark."""

from __future__ import annotations

import re
from collections.abc import Iterator

from planc.syntax.grammar import grammar_text
from planc.tables import render_table

_DEFINITION = re.compile(r"^[?!]?(\w+): (.*)$", re.MULTILINE)
_WORD = re.compile(r"/(\w+)\(\?!\S*/|(\"\w+\")")
"""A terminal that is one word, alone or with a negative lookahead."""
_STRINGS = re.compile(r'("[^"]*")')


def readable_rules() -> str:
    """Every rule of the grammar on its own line, with words in place of their terminals."""
    definitions = dict(_DEFINITION.findall(grammar_text()))
    words = {name: found for name, body in definitions.items() if (found := _word(body))}
    rules = [(name, body) for name, body in definitions.items() if not _is_terminal(name)]
    return render_table([(_plain(name, words), _plain(body, words)) for name, body in rules])


def readable_terminals() -> str:
    """Every terminal that is not one word, as a regular expression or its alternatives."""
    definitions = _DEFINITION.findall(grammar_text())
    rows = [(_plain(name, {}), body) for name, body in definitions if _is_terminal(name) and not _word(body)]
    return render_table(rows)


def _is_terminal(name: str) -> bool:
    return name.isupper()


def _word(body: str) -> str:
    match = _WORD.fullmatch(body)
    return (match[2] or f'"{match[1]}"') if match else ""


def _plain(body: str, words: dict[str, str]) -> str:
    return "".join(_plain_parts(body, words))


def _plain_parts(body: str, words: dict[str, str]) -> Iterator[str]:
    """Names without Lark's leading underscore; quoted text is unchanged."""
    for part in _STRINGS.split(body):
        if part.startswith('"'):
            yield part
        else:
            yield re.sub(r"\w+", lambda name: words.get(name[0], name[0].removeprefix("_")), part)
