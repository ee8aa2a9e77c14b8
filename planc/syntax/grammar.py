"""The grammar's text and the parser made from it."""

from __future__ import annotations

import functools
import hashlib
import importlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import lark
from lark import Lark, Token
from lark.grammar import Rule
from lark.lark import PostLex
from lark.lexer import TerminalDef

_WHEEL_COPY = "plan.lark"


def grammar_text() -> str:
    """`plan.lark`: next to this module in a wheel, in `grammar/` of the checkout in an editable install."""
    # Not `importlib.resources`, which imports 3 ms of what it may need.
    packaged = Path(__file__).with_name(_WHEEL_COPY)
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


def build_parser() -> Lark:
    """The LALR parser, built from the grammar. Start symbols: `start` (a file), `assignment` (`--set`)."""
    # Lark's own cache unpickles a file from a shared temporary folder, so it stays off.
    return Lark(
        grammar_text(),
        parser="lalr",
        start=["start", "assignment"],
        propagate_positions=True,
        maybe_placeholders=True,
        postlex=BracketNewlines(),
    )


def table_text() -> str:
    """The source of `planc/syntax/table.py`: the parser's table as literals, which need no unpickling."""
    data, memo = build_parser().memo_serialize([TerminalDef, Rule])
    data["options"]["postlex"] = None
    table = {"lark": lark.__version__, "grammar": _digest(), "data": data, "memo": memo}
    return f'"""Written by hatch_build.py from grammar/plan.lark."""\n\nTABLE = {table!r}\n'


@functools.cache
def parser() -> Lark:
    """The parser, made once per process: from an installed table if it fits, otherwise from the grammar.

    The table saves 40 ms. It fits if it was made from this grammar by this version of Lark.
    """
    try:
        table = importlib.import_module("planc.syntax.table").TABLE
    except ModuleNotFoundError:
        return build_parser()
    if (table["lark"], table["grammar"]) != (lark.__version__, _digest()):
        return build_parser()
    # Lark's public `load` takes no lexer post-processing.
    load: Any = Lark._load_from_dict
    loaded: Lark = load(table["data"], table["memo"], postlex=BracketNewlines())
    return loaded


def _digest() -> str:
    return hashlib.sha256(grammar_text().encode()).hexdigest()
