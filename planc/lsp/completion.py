"""Completions at a place: keys, values, units, calls, and names of the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import Field
from enum import StrEnum
from typing import Any

from planc.lsp import language
from planc.lsp.cursor import Cursor, cursor
from planc.lsp.session import Analysis
from planc.plan.blocks import BLOCKS, Shape
from planc.plan.facts import COUNTS, FLAGS
from planc.plan.keys import keys, type_of
from planc.plan.quantities import BYTES
from planc.plan.scalars import ValueType
from planc.record import record
from planc.show.reference import fact_rows, key_row, on_one_line
from planc.source import Span
from planc.styles import BY_NAME
from planc.syntax import ast
from planc.syntax.budget import MAX_CHARACTERS

_PARAM_TYPES = ("int", "float", "string", "bool")


class Kind(StrEnum):
    BLOCK = "block"
    CALL = "call"
    FACT = "fact"
    KEY = "key"
    KEYWORD = "keyword"
    MODULE = "module"
    PARAM = "param"
    UNIT = "unit"
    WORD = "word"


@record
class Item:
    """One thing to write: `text` replaces what is written of it, which is before the place."""

    label: str
    kind: Kind
    text: str
    replaces: Span
    detail: str = ""
    doc: str = ""


@record
class _Place:
    """The place that items complete."""

    at: Cursor
    analysis: Analysis
    tree: ast.PlanFile

    def item(
        self,
        label: str,
        kind: Kind,
        *,
        ends: str = "",
        detail: str = "",
        doc: str = "",
        over: str | None = None,
    ) -> Item:
        at, over = self.at, self.at.word if over is None else over
        start = max(1, at.column - len(over))
        span = Span(self.analysis.source.name, at.line, start, at.line, at.column)
        return Item(label, kind, label + ends, span, detail, doc)


def complete(analysis: Analysis, line: int, column: int) -> tuple[Item, ...]:
    """The items at a place, none in a text that is too large for a plan.

    Names of the model may be those of an earlier text.
    """
    if len(analysis.source.text) > MAX_CHARACTERS:
        return ()
    at = cursor(analysis.source, line, column)
    if at.in_comment:
        return ()
    place = _Place(at, analysis, analysis.tree)
    return tuple(_in_string(place) if at.string is not None else _items(place))


def _in_string(place: _Place) -> Iterator[Item]:
    """The next parts of the names that a half-written pattern matches."""
    at, inventory = place.at, place.analysis.inventory
    shape = language.shape_of(at.blocks)
    is_pattern = shape is not None and shape.actions and not at.statement and at.calls in ((), ((),))
    if not is_pattern or inventory is None or at.string is None:
        return
    over, parts = language.next_parts(at.string, language.names_for(at.blocks[0][0], inventory))
    for part in parts:
        yield place.item(part, Kind.MODULE, over=over)


def _items(place: _Place) -> Iterator[Item]:
    at = place.at
    if at.calls:
        yield from _in_call(place)
    elif not at.blocks:
        yield from _at_top(place)
    elif at.blocks[0][0] == "expect":
        yield from _in_expect(place)
    elif (shape := language.shape_of(at.blocks)) is not None:
        yield from _in_block(place, shape)


def _at_top(place: _Place) -> Iterator[Item]:
    statement = place.at.statement
    if not statement:
        written = {
            statement.kind.text for statement in place.tree.statements if isinstance(statement, ast.Block)
        }
        for kind, shape in BLOCKS.items():
            if kind not in written:
                yield place.item(kind, Kind.BLOCK, doc=on_one_line(shape.record.__doc__, of=shape.record))
        for word in ("param", "extends", "import", "extension", "expect"):
            yield place.item(word, Kind.KEYWORD)
    elif statement[0] == "param" and statement[-1] == ":":
        yield from (place.item(word, Kind.WORD) for word in _PARAM_TYPES)
    elif len(statement) > 1 and statement[1] == "on" and statement[0] in BLOCKS:
        yield from (
            place.item(dim, Kind.WORD)
            for dim in map(str, BLOCKS[statement[0]].on)
            if dim not in statement[2:]
        )
    elif len(statement) == 1 and statement[0] in BLOCKS and BLOCKS[statement[0]].on:
        yield place.item("on", Kind.KEYWORD)


def _in_expect(place: _Place) -> Iterator[Item]:
    statement = place.at.statement
    if not statement:
        for name, kind, text in fact_rows():
            yield place.item(name, Kind.FACT, detail=kind, doc=text)
    elif statement[0] in FLAGS and len(statement) == 2:
        yield from (place.item(word, Kind.WORD) for word in ("true", "false"))
    elif len(statement) == 3 and statement[2][0].isdecimal() and statement[0] not in COUNTS:
        yield from (place.item(unit, Kind.UNIT) for unit in BYTES)


def _in_block(place: _Place, shape: Shape) -> Iterator[Item]:
    statement = tuple(word for word in place.at.statement if word != "override")
    if "->" in statement:
        if statement[-1] == "->":
            yield from _actions(place, shape)
    elif "=" in statement:
        found = language.field_of(shape.record, statement[0])
        if found is not None:
            yield from _values(place, type_of(found), statement[statement.index("=") + 1 :])
    elif statement == ("use",):
        yield from _fragments(place)
    elif not statement:
        yield from _statements(place, shape)


def _statements(place: _Place, shape: Shape) -> Iterator[Item]:
    """Keys that the block does not have yet, nested blocks, directives and keywords."""
    written = _written(place)
    for key in keys(shape.record):
        if key.name not in written:
            yield _key(place, key)
    for name, labels in shape.nested.items():
        for label in labels:
            yield place.item(f'{name} "{label}"', Kind.BLOCK, ends=" {")
    for name, call in shape.directives.items():
        yield place.item(name, Kind.KEYWORD, doc=on_one_line(call.__doc__, of=call))
    yield place.item("override", Kind.KEYWORD)
    if any(isinstance(statement, ast.Import) for statement in place.tree.statements):
        yield place.item("use", Kind.KEYWORD)


def _written(place: _Place) -> frozenset[str]:
    """The keys that the block at the place has."""
    statements: Sequence[ast.Statement] = place.tree.statements
    for kind, label in place.at.blocks:
        block = next(
            (
                statement
                for statement in statements
                if isinstance(statement, ast.Block)
                and (statement.kind.text, statement.label.value if statement.label else "") == (kind, label)
            ),
            None,
        )
        if block is None:
            return frozenset()
        statements = block.body
    return frozenset(statement.name.text for statement in statements if isinstance(statement, ast.Setting))


def _actions(place: _Place, shape: Shape) -> Iterator[Item]:
    for name, call in (shape.actions or {}).items():
        doc = BY_NAME[name].doc if name in BY_NAME else on_one_line(call.__doc__, of=call)
        yield place.item(name, Kind.CALL, doc=doc)


def _fragments(place: _Place) -> Iterator[Item]:
    """`alias.fragment` of each import for a block of this kind."""
    sources = place.analysis.checked.sources
    for statement in place.tree.statements:
        if not isinstance(statement, ast.Import):
            continue
        for block in _imported(statement, place.analysis) if sources else ():
            if block.label is not None and block.kind.text == place.at.blocks[-1][0]:
                yield place.item(f"{statement.alias.text}.{block.label.value}", Kind.WORD)


def _imported(statement: ast.Import, analysis: Analysis) -> Iterable[ast.Block]:
    """The blocks of a file that the text imports."""
    tree = analysis.included_tree(statement.path.value, of=analysis.source.name)
    return (one for one in tree.statements if isinstance(one, ast.Block)) if tree else ()


def _values(place: _Place, wanted: ValueType, written: Sequence[str]) -> Iterator[Item]:
    """Words, calls and parameters at the start of a value; units after a number."""
    if not written:
        calls = language.calls_in(wanted)
        for word in language.words_of(wanted):
            doc = on_one_line(calls[word].__doc__, of=calls[word]) if word in calls else ""
            yield place.item(word, Kind.CALL if word in calls else Kind.WORD, doc=doc)
        for param in place.tree.statements if language.takes_params(wanted) else ():
            if isinstance(param, ast.Param):
                yield place.item(param.name.text, Kind.PARAM, detail=param.type.name.text)
    elif len(written) == 1 and written[0].lstrip("-")[:1].isdecimal():
        yield from (place.item(unit, Kind.UNIT) for unit in language.units_of(wanted))


def _in_call(place: _Place) -> Iterator[Item]:
    """Arguments that the innermost call does not have yet, or the values of one."""
    wanted = _wanted(place)
    statement = place.at.statement
    if isinstance(wanted, type):
        if not statement:
            yield from (_key(place, key) for key in keys(wanted))
        elif (
            len(statement) > 1 and statement[1] == "=" and (found := language.field_of(wanted, statement[0]))
        ):
            yield from _values(place, type_of(found), statement[2:])
        first = keys(wanted)[:1]
        if not statement and first and first[0].metadata["positional"]:
            yield from _values(place, type_of(first[0]), ())
    elif wanted is not None:
        yield from _values(place, wanted, statement)


def _wanted(place: _Place) -> type[Any] | ValueType | None:
    """The record of the innermost open call's arguments, or the type of the items of an open list."""
    shape = language.shape_of(place.at.blocks)
    wanted: type[Any] | ValueType | None = None
    for depth, before in enumerate(place.at.calls):
        words = tuple(word for word in before if word != "override")
        if depth == 0:
            if shape is None or not words:
                return None
            if "->" in words:
                wanted = (shape.actions or {}).get(words[-1])
                continue
            wanted = shape.record
            if words[0] in shape.directives:
                wanted = shape.directives[words[0]]
                continue
        wanted = _inside(wanted, words)
    return wanted


def _inside(outer: type[Any] | ValueType | None, words: Sequence[str]) -> type[Any] | ValueType | None:
    """Return the type that `key = name(` or `key = [` opens within `outer`."""
    wanted = outer
    if isinstance(outer, type):
        one = language.field_of(outer, words[0]) if len(words) > 1 and words[1] == "=" else None
        first = keys(outer)[:1]
        one = one or (first[0] if first and first[0].metadata["positional"] else None)
        wanted = type_of(one) if one else None
    if wanted is None or isinstance(wanted, type):
        return None
    is_list = not words or words[-1] == "="
    return wanted if is_list else language.calls_in(wanted).get(words[-1])


def _key(place: _Place, one: Field[Any]) -> Item:
    name, kind, doc = key_row(one)
    return place.item(name, Kind.KEY, ends=" = ", detail=kind, doc=doc)
