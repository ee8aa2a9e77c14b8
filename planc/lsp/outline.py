"""The outline of a text: blocks with their settings and rules, parameters and includes."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from planc.record import record
from planc.source import SourceFile, Span
from planc.syntax import ast


class Kind(StrEnum):
    BLOCK = "block"
    FILE = "file"
    KEY = "key"
    PARAM = "param"
    RULE = "rule"


@record
class Symbol:
    """An entry: `whole` is the statement, `name_span` its name."""

    name: str
    kind: Kind
    detail: str
    whole: Span
    name_span: Span
    children: tuple[Symbol, ...] = ()


def outline(tree: ast.PlanFile, source: SourceFile) -> tuple[Symbol, ...]:
    """The entries in the order of the text."""
    return tuple(found for statement in tree.statements for found in _symbols(statement, source))


def _symbols(statement: ast.Statement, source: SourceFile) -> Iterator[Symbol]:
    match statement:
        case ast.Block(kind, label, on, body, span):
            name = f"{kind.text} {label.value}" if label else kind.text
            children = tuple(found for one in body for found in _symbols(one, source))
            detail = f"on {', '.join(dim.text for dim in on)}" if on else ""
            yield Symbol(name, Kind.BLOCK, detail, span, kind.span, children)
        case ast.Setting(name, value, _, span):
            yield Symbol(name.text, Kind.KEY, source.text_of(value.span), span, name.span)
        case ast.Rule(patterns, action, _, span):
            names = ", ".join(pattern.value for pattern in patterns)
            yield Symbol(names or '""', Kind.RULE, action.name.text, span, patterns[0].span)
        case ast.Param(name, _, default, span):
            yield Symbol(name.text, Kind.PARAM, source.text_of(default.span), span, name.span)
        case ast.Extends(path, span) | ast.Import(path, _, span) | ast.Extension(path, span):
            yield Symbol(path.value or '""', Kind.FILE, "", span, path.span)
        case _:
            return
