"""The grammar's text and the parser made from it."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path

from lark import Lark, Token
from lark.lark import PostLex

_WHEEL_COPY = "plan.lark"


def grammar_text() -> str:
    """`plan.lark`: beside this module in a wheel, in `grammar/` of the checkout in an editable install."""
    packaged = resources.files("planc.syntax") / _WHEEL_COPY
    if packaged.is_file():
        return packaged.read_text(encoding="utf-8")
    return (Path(__file__).parents[2] / "grammar" / "plan.lark").read_text(encoding="utf-8")


class BracketNewlines(PostLex):
    """Drops newline tokens inside ( ) and [ ]: a list may span lines without the grammar saying so."""

    always_accept: Iterable[str] = ("_NEWLINE",)

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        depth = 0
        for token in stream:
            if token.type in ("LPAR", "LSQB"):
                depth += 1
            elif token.type in ("RPAR", "RSQB"):
                depth -= 1
            elif token.type == "_NEWLINE" and depth > 0:
                continue
            yield token


@functools.cache
def parser() -> Lark:
    """The LALR parser, built once a process. Start symbols: `start` (a file), `assignment` (`--set`)."""
    # Lark's own cache unpickles a file from a shared temporary folder, so it stays off.
    return Lark(
        grammar_text(),
        parser="lalr",
        start=["start", "assignment"],
        propagate_positions=True,
        maybe_placeholders=True,
        postlex=BracketNewlines(),
    )
