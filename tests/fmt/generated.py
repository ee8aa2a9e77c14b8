"""Plans of any shape in any layout: random statements, with random blanks, newlines and comments between."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

Tokens = tuple[str, ...]

BREAK = "\n"
"""A token for the end of a statement: a newline, or a comma."""
OPTIONAL_BREAK = ""
"""A token for the inside of a brace, where a newline may stand."""

NAMES = st.sampled_from(["a", "lr", "_x1", "mesh", "reshard_after_forward", "n" * 60])
NUMBERS = st.sampled_from(["0", "-1", "1_048_576", "3e-4", "-0.50", "1E+05"])
STRINGS = st.text('ab.*{}[]#,() é"\t', max_size=12).map(lambda text: '"' + text.replace('"', "") + '"')
REMARKS = st.text('ab.*{}[]#,() é"\t', max_size=8).map(str.rstrip)
BLANKS = st.sampled_from(["", "", " ", "\t", "   "])


@dataclass(frozen=True, slots=True)
class Written:
    """A plan's text, and the comments that went into it, in order: `#0: ...`, `#1: ...`."""

    text: str
    comments: tuple[str, ...]


def _between(items: Sequence[Tokens], separator: str) -> Tokens:
    return tuple(token for item in items for token in (separator, *item))[1:]


def _listed(opening: str, items: Sequence[Tokens], closing: str, trailing: bool) -> Tokens:
    return (opening, *_between(items, ","), *([","] if trailing and items else []), closing)


def _values() -> st.SearchStrategy[Tokens]:
    numbers = st.tuples(NUMBERS) | st.tuples(NUMBERS, NAMES)
    leaves = numbers | st.tuples(NAMES | STRINGS | st.sampled_from(["true", "false"]))
    return st.recursive(leaves, lambda inner: _calls(inner) | _lists(inner), max_leaves=8)


def _lists(inner: st.SearchStrategy[Tokens]) -> st.SearchStrategy[Tokens]:
    return st.builds(_listed, st.just("["), st.lists(inner, max_size=4), st.just("]"), st.booleans())


def _calls(inner: st.SearchStrategy[Tokens]) -> st.SearchStrategy[Tokens]:
    arguments = inner | st.builds(lambda name, value: (name, "=", *value), NAMES, inner)
    listed = st.builds(_listed, st.just("("), st.lists(arguments, max_size=4), st.just(")"), st.booleans())
    return st.builds(lambda name, tokens: (name, *tokens), NAMES, listed)


VALUES = _values()
OVERRIDES: st.SearchStrategy[Tokens] = st.sampled_from([(), ("override",)])
PATTERNS = st.tuples(STRINGS) | st.builds(
    _listed, st.just("["), st.lists(st.tuples(STRINGS), min_size=1, max_size=3), st.just("]"), st.booleans()
)
ACTIONS = st.tuples(NAMES) | _calls(VALUES)
BOUNDS: st.SearchStrategy[Tokens] = st.just(()) | st.builds(
    lambda low, high: ("(", low, "..", high, ")"), NUMBERS, NUMBERS
)
OPERATORS = st.sampled_from(["==", "!=", "<=", ">=", "<", ">"])
PATHS = st.lists(st.tuples(NAMES), min_size=1, max_size=3)
LABELS = st.just(()) | st.tuples(STRINGS)
ONS = st.lists(st.tuples(NAMES), max_size=2).map(
    lambda names: ("on", *_between(names, ",")) if names else ()
)  # fmt: skip


def _block(name: str, label: Tokens, on: Tokens, body: Sequence[Tokens]) -> Tokens:
    inner = (OPTIONAL_BREAK, *_between(body, BREAK), OPTIONAL_BREAK) if body else (OPTIONAL_BREAK,)
    return (name, *label, *on, "{", *inner, "}")


def _statements() -> st.SearchStrategy[Tokens]:
    leaves = (
        st.builds(
            lambda override, path, value: (*override, *_between(path, "."), "=", *value),
            OVERRIDES,
            PATHS,
            VALUES,
        )
        | st.builds(
            lambda override, patterns, action: (*override, *patterns, "->", *action),
            OVERRIDES,
            PATTERNS,
            ACTIONS,
        )
        | st.tuples(NAMES)
        | st.builds(lambda path: ("extends", path), STRINGS)
        | st.builds(lambda path: ("extension", path), STRINGS)
        | st.builds(lambda path, alias: ("import", path, "as", alias), STRINGS, NAMES)
        | st.builds(lambda names: ("use", *_between(names, ".")), PATHS)
        | st.builds(
            lambda path, operator, value: (*_between(path, "."), operator, *value),
            PATHS,
            OPERATORS,
            VALUES,
        )
        | st.builds(
            lambda name, kind, bounds, value: ("param", name, ":", kind, *bounds, "=", *value),
            NAMES,
            NAMES,
            BOUNDS,
            VALUES,
        )
    )
    return st.recursive(
        leaves,
        lambda inner: st.builds(_block, NAMES, LABELS, ONS, st.lists(inner, max_size=4)),
        max_leaves=8,
    )


FILES = st.lists(_statements(), max_size=4)


@st.composite
def written_plans(draw: st.DrawFn) -> Written:
    """A plan that parses, as someone without a formatter might write it."""
    tokens = (OPTIONAL_BREAK, *_between(draw(FILES), BREAK), OPTIONAL_BREAK)
    pieces: list[str] = []
    comments: list[str] = []
    depth = 0

    def gap(*, newlines: int) -> str:
        """Blanks, at least so many newlines, and comments, each of which ends its line."""
        gap_pieces = [draw(BLANKS)]
        for _ in range(newlines + draw(st.sampled_from([0, 0, 0, 1, 3]))):
            if draw(st.booleans()):
                comments.append(f"#{len(comments)}:{draw(REMARKS)}")
                gap_pieces.append(comments[-1] + draw(BLANKS))
            gap_pieces.append("\n" + draw(BLANKS))
        return "".join(gap_pieces)

    for token in tokens:
        if depth > 0:
            pieces.append(gap(newlines=0))
        if token == BREAK:
            is_comma = draw(st.booleans())
            pieces.append("," + gap(newlines=0) if is_comma else gap(newlines=1))
            continue
        if token == OPTIONAL_BREAK:
            pieces.append(gap(newlines=0))
            continue
        if depth == 0:
            pieces.append(draw(BLANKS))
        needs_blank = pieces and re.search(r"\w$", pieces[-1] or pieces[-2]) and re.match(r"\w", token)
        pieces.append(" " * bool(needs_blank) + token)
        depth += (token in ("(", "[")) - (token in (")", "]"))
    return Written("".join(pieces), tuple(comments))
