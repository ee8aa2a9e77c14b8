"""The part of a block's page that is about one word: a key, an action, a value or an argument."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import Field
from typing import Any

from planc.plan.blocks import BLOCKS, Shape
from planc.plan.types import calls_of, keys, type_of
from planc.show.reference import call_lines, fact_rows, key_row
from planc.styles import BY_NAME
from planc.tables import render_table


def parts(word: str, *, block: str = "") -> str | None:
    """What blocks say about a word, with where the rest is; None for a word of no block.

    A word that is a key somewhere is explained as that key only, and so on for actions and nested blocks,
    then for values, then for arguments. `block` limits the search to one kind of block.
    """
    for part in (_key, _inside, _value, _argument):
        found = {kind: [*part(shape, word)] for kind, shape in BLOCKS.items() if block in ("", kind)}
        if part is _key and block in ("", "expect"):
            found["expect"] = [_table(row) for row in fact_rows() if row[0] == word]
        texts = [_text(kind, lines) for kind, lines in found.items() if lines]
        if texts:
            return "\n".join(texts)
    return None


def _text(kind: str, lines: list[str]) -> str:
    on = f" on {', '.join(BLOCKS[kind].on)}" if kind in BLOCKS and BLOCKS[kind].on else ""
    body = "\n".join(lines)
    return f"{kind}{on} {{ ... }}\n\n{body}\n\n`planc explain {kind}` shows the whole block\n"


def _key(shape: Shape, word: str) -> Iterator[str]:
    for key in keys(shape.record):
        if key.name == word:
            yield _row(key)
            for name, case in calls_of(type_of(key)).items():
                yield from call_lines(name, case, doc=case.__doc__)


def _inside(shape: Shape, word: str) -> Iterator[str]:
    """A nested block by its name or label, a directive, or an action."""
    for name, labels in shape.nested.items():
        for label, inner in labels.items():
            if word in (name, label):
                yield from call_lines(f'{name} "{label}" {{ ... }}', inner.record, doc=inner.record.__doc__)
    for name, record in shape.directives.items():
        if name == word:
            yield from call_lines(name, record, doc=record.__doc__)
    for name, record in (shape.actions or {}).items():
        if name == word:
            doc = BY_NAME[name].doc if name in BY_NAME else record.__doc__
            yield from call_lines(f'"pattern" -> {name}', record, doc=doc)


def _value(shape: Shape, word: str) -> Iterator[str]:
    """The keys that take a value of this name."""
    for head, one in _fields(shape):
        if f"`{word}`" in type_of(one).describe(mark="`") and one.name != word:
            yield from ([f"  {head}"] if head else [])
            yield _row(one, indent="      " if head else "  ")
            calls = calls_of(type_of(one))
            if word in calls:
                yield from call_lines(word, calls[word], doc=calls[word].__doc__)


def _argument(shape: Shape, word: str) -> Iterator[str]:
    """The arguments of this name, and keys of nested blocks, each under what it belongs to."""
    for head, one in _fields(shape):
        if head and one.name == word:
            yield f"  {head}"
            yield _row(one, indent="      ")


def _fields(shape: Shape) -> Iterator[tuple[str, Field[Any]]]:
    """Every key and argument, with what it belongs to; empty for keys of the block itself."""
    for key in keys(shape.record):
        yield "", key
        for name, case in calls_of(type_of(key)).items():
            yield from ((f"{key.name} = {name}(...)", inner) for inner in keys(case))
    for name, labels in shape.nested.items():
        for label, nested in labels.items():
            yield from ((f'{name} "{label}" {{ ... }}', inner) for inner in keys(nested.record))
    for name, record in (shape.actions or {}).items():
        yield from ((f'"pattern" -> {name}(...)', inner) for inner in keys(record))


def _row(one: Field[Any], *, indent: str = "  ") -> str:
    return _table(key_row(one), indent=indent)


def _table(row: tuple[str, str, str], *, indent: str = "  ") -> str:
    return render_table([row], indent=indent).rstrip()
