"""The meaning of a word or a pattern, from the pages of `planc explain` and the views of `planc show`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from planc.graph.text import summarise
from planc.lsp.cursor import blocks_of, path_to
from planc.lsp.language import calls_in, field_of, names_for, shape_of
from planc.lsp.places import definition
from planc.lsp.session import Analysis
from planc.plan.keys import type_of
from planc.plan.pattern import parse_pattern
from planc.plan.scalars import ValueType
from planc.record import record
from planc.show import origin
from planc.show.layout import layout_text
from planc.show.reference import call_lines, fact_rows, key_row, page
from planc.source import Span
from planc.styles import BY_NAME
from planc.syntax import ast

_MAX_NAMES = 12
"""Names of a pattern, with layers folded; a popup that fills the screen helps no one."""


@record
class Hover:
    """Text about a span: paragraphs of plain text, and tables whose columns must stay aligned."""

    span: Span
    paragraphs: tuple[str, ...]
    table: str = ""


def hover(analysis: Analysis, line: int, column: int) -> Hover | None:
    """Describe the place; None for space, comments and punctuation."""
    path = path_to(analysis.tree, line, column)
    match path[-1], path[-2] if len(path) > 1 else None:
        case ast.Name() as name, ast.Block(kind) as block if name is kind:
            return _block(name, block, nested=len(blocks_of(path)) > 1)
        case ast.Name() as name, ast.Setting() if name is path[-2].name:
            return _setting(analysis, name, path)
        case ast.Name() as name, ast.Argument():
            return _argument(name, path)
        case ast.Text() as text, ast.Rule(patterns) if text in patterns:
            return _pattern(analysis, text, blocks_of(path))
        case ast.Name() as name, ast.Comparison():
            return _fact(name)
        case _:
            return _word(analysis, path)


def _block(name: ast.Name, block: ast.Block, *, nested: bool) -> Hover | None:
    text = None if nested else page(name.text)
    return Hover(name.span, (), text) if text else None


def _setting(analysis: Analysis, name: ast.Name, path: tuple[Any, ...]) -> Hover | None:
    """The key's row of the reference, then its value and where that comes from."""
    blocks = blocks_of(path)
    shape = shape_of(blocks)
    found = field_of(shape.record, name.text) if shape else None
    if found is None:
        return None
    _, kind, doc = key_row(found)
    setting = ".".join((*(part for block in blocks for part in block if part), name.text))
    return Hover(name.span, (f"{setting}: {doc}", kind, *_value(analysis, setting)))


def _value(analysis: Analysis, setting: str) -> Iterator[str]:
    plan = analysis.checked.plan
    if plan is not None and setting in plan.origins:
        steps = " <- ".join(origin.chain(plan.origins[setting]))
        yield f"value: {origin.values(plan)[setting]} ({steps})"


def _argument(name: ast.Name, path: tuple[Any, ...]) -> Hover | None:
    call = next((node for node in reversed(path) if isinstance(node, ast.Call)), None)
    if call is None:
        return None
    arguments = _record_of(call, path)
    found = field_of(arguments, name.text) if arguments else None
    if found is None:
        return None
    _, kind, doc = key_row(found)
    return Hover(name.span, (f"{call.name.text}({name.text}): {doc}", kind))


def _record_of(call: ast.Call | ast.Ref, path: tuple[Any, ...]) -> type[Any] | None:
    """The record of a call's arguments, found from the outermost statement inwards."""
    shape = shape_of(blocks_of(path))
    if shape is None:
        return None
    calls: Mapping[str, type[Any]] = {**(shape.actions or {}), **shape.directives}
    outer: type[Any] | None = shape.record
    for node in path:
        if isinstance(node, ast.Setting | ast.Argument) and outer is not None:
            wanted = _type_in(outer, node.name)
            calls = calls_in(wanted) if wanted else {}
        elif isinstance(node, ast.Call | ast.Ref):
            outer = calls.get(node.name.text)
        if node is call:
            return outer
    return None


def _type_in(outer: type[Any], name: ast.Name | None) -> ValueType | None:
    found = field_of(outer, name.text) if name else None
    return type_of(found) if found else None


def _pattern(analysis: Analysis, text: ast.Text, blocks: tuple[tuple[str, str], ...]) -> Hover | None:
    """The names that a pattern matches, and the layout of their parameters where the plan is sound."""
    inventory, pattern = analysis.inventory, parse_pattern(text)
    if inventory is None or isinstance(pattern, tuple) or not blocks:
        return None
    matched = pattern.select(names_for(blocks[0][0], inventory))
    folded = summarise(matched)
    head = f"matches {len(matched)} of {inventory.architecture}: " if matched else "matches nothing"
    more = f", and {len(folded) - _MAX_NAMES} more" if len(folded) > _MAX_NAMES else ""
    return Hover(text.span, (f"{head}{', '.join(folded[:_MAX_NAMES])}{more}",), _layout(analysis, matched))


def _layout(analysis: Analysis, matched: tuple[str, ...]) -> str:
    """`planc show --layout`, of the parameters with these names or in these modules."""
    if analysis.model is None:
        return ""
    names = frozenset(matched)
    found = tuple(layout for layout in analysis.model.layouts if names.intersection(_prefixes(layout.fqn)))
    return layout_text(found) if found else ""


def _prefixes(fqn: str) -> Iterator[str]:
    parts = fqn.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def _fact(name: ast.Name) -> Hover | None:
    row = next((row for row in fact_rows() if row[0] == name.text), None)
    return Hover(name.span, (f"{row[0]}: {row[2]}", row[1])) if row else None


def _word(analysis: Analysis, path: tuple[Any, ...]) -> Hover | None:
    """A parameter, a fragment, a style or another call."""
    node = path[-1]
    name = node if isinstance(node, ast.Name) else None
    if name is None:
        return None
    target = definition(analysis, name.span.line, name.span.column)
    if target is not None:
        written = analysis.text(target.whole)
        return Hover(name.span, (), written) if written else None
    call = next((one for one in reversed(path) if isinstance(one, ast.Call | ast.Ref)), None)
    if call is None or call.name is not name:
        return None
    if name.text in BY_NAME and blocks_of(path)[:1] == (("tensor_parallel", ""),):
        return Hover(name.span, (), page(name.text) or "")
    found = _record_of(call, path)
    return Hover(name.span, (), "\n".join(call_lines(name.text, found, doc=found.__doc__))) if found else None
