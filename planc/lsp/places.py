"""Definitions and uses of names: parameters, fragments, bases and imports."""

from __future__ import annotations

import re
from collections.abc import Iterator

from planc.lsp.cursor import path_to, refs
from planc.lsp.language import Opened, field_of, shape_of, takes_params
from planc.lsp.session import Analysis
from planc.plan.keys import type_of
from planc.record import record
from planc.source import Span
from planc.syntax import ast

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@record
class Target:
    """A definition: `name` is what to jump to, `whole` the statement."""

    name: Span
    whole: Span


def definition(analysis: Analysis, line: int, column: int) -> Target | None:
    """Return the target that the word or path at a place names; None for words of the language."""
    path = path_to(analysis.tree, line, column)
    for node in reversed(path):
        match node:
            case ast.Extends(path=written) | ast.Import(path=written) | ast.Extension(path=written):
                return _file(analysis, written)
            case ast.Use(name):
                return _fragment(analysis, name, column - name.span.column)
            case ast.Ref(name):
                return _param(analysis, name.text)
            case ast.Param(name) if path[-1] is name:
                return Target(name.span, node.span)
    return None


def uses(analysis: Analysis, line: int, column: int) -> tuple[Span, ...]:
    """Every place in the open text of the parameter that is named at a place, its definition first."""
    target = definition(analysis, line, column)
    if target is None or target.name.file != analysis.source.name:
        return ()
    param = next((param for param in _params(analysis.tree) if param.name.span == target.name), None)
    if param is None:
        return ()
    found = (ref for statement in analysis.tree.statements for ref in _values(statement, ()))
    return (param.name.span, *(ref.span for ref in found if ref.name.text == param.name.text))


def _values(statement: ast.Statement, blocks: tuple[Opened, ...]) -> Iterator[ast.Ref]:
    """The words that may name a parameter, without choices that have the same name."""
    match statement:
        case ast.Block(kind, label, _, body):
            inner = (*blocks, (kind.text, label.value if label else ""))
            for one in body:
                yield from _values(one, inner)
        case ast.Setting(name, ast.Ref() as value):
            shape = shape_of(blocks)
            key = field_of(shape.record, name.text) if shape else None
            if key is None or takes_params(type_of(key)):
                yield value
        case ast.Rule(action=ast.Ref()) | ast.Param():
            return
        case _:
            yield from refs(statement)


def renamable(analysis: Analysis, line: int, column: int) -> tuple[Span, ...]:
    """Every place of the parameter that is named at a place. ValueError with a reason if there is none."""
    found = uses(analysis, line, column)
    if not found:
        raise ValueError("only a parameter of this file can be renamed")
    return found


def rename(analysis: Analysis, line: int, column: int, *, name: str) -> tuple[Span, ...]:
    """The places to write a parameter's new name at. ValueError with a reason where that can't be done."""
    spans = renamable(analysis, line, column)
    if not _NAME.match(name):
        raise ValueError("write a name of letters, digits and `_`")
    taken = {param.name.text for param in _params(analysis.tree)}
    words = {ref.name.text for statement in analysis.tree.statements for ref in refs(statement)}
    if name in taken | words and name != analysis.text(spans[0]):
        raise ValueError(f"`{name}` already means something in this file")
    return spans


def _params(tree: ast.PlanFile) -> Iterator[ast.Param]:
    return (statement for statement in tree.statements if isinstance(statement, ast.Param))


def _param(analysis: Analysis, name: str) -> Target | None:
    """A parameter of the open text, or of a file that it extends."""
    tree: ast.PlanFile | None = analysis.tree
    for _ in range(len(analysis.checked.sources) + 1):
        if tree is None:
            break
        for param in _params(tree):
            if param.name.text == name:
                return Target(param.name.span, param.span)
        base = next((statement for statement in tree.statements if isinstance(statement, ast.Extends)), None)
        tree = analysis.included_tree(base.path.value, of=tree.file) if base else None
    return None


def _file(analysis: Analysis, written: ast.Text) -> Target | None:
    tree = analysis.included_tree(written.value, of=written.span.file)
    if tree is None:
        return None
    start = Span(tree.file, 1, 1, 1, 1)
    return Target(start, start)


def _fragment(analysis: Analysis, name: ast.Name, offset: int) -> Target | None:
    """The fragment that `alias.name` uses; on the alias, the import."""
    alias, _, label = name.text.partition(".")
    imports = (statement for statement in analysis.tree.statements if isinstance(statement, ast.Import))
    statement = next((one for one in imports if one.alias.text == alias), None)
    if statement is None:
        return None
    if offset <= len(alias):
        return Target(statement.alias.span, statement.span)
    tree = analysis.included_tree(statement.path.value, of=analysis.source.name)
    blocks = (statement for statement in tree.statements if isinstance(statement, ast.Block)) if tree else ()
    block = next((block for block in blocks if block.label is not None and block.label.value == label), None)
    return Target(block.label.span, block.span) if block and block.label else None
