"""The syntax tree by place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from planc.lsp.language import Opened
from planc.source import Span
from planc.syntax import ast


def path_to(tree: ast.PlanFile, line: int, column: int) -> tuple[Any, ...]:
    """The nodes around a place, outermost first. The place after a node's last character is in it too."""
    path: list[Any] = []
    inner: object | None = tree
    while inner is not None:
        path.append(inner)
        inner = next((child for child in _children(inner) if _holds(child, line, column)), None)
    return tuple(path)


def blocks_of(path: tuple[Any, ...]) -> tuple[Opened, ...]:
    """The blocks around a place, as the language names them."""
    blocks = (node for node in path if isinstance(node, ast.Block))
    return tuple((block.kind.text, block.label.value if block.label else "") for block in blocks)


def refs(node: object) -> Iterator[ast.Ref]:
    """Every bare word below a node."""
    if isinstance(node, ast.Ref):
        yield node
    for child in _children(node):
        yield from refs(child)


def _children(node: object) -> Iterator[Any]:
    if not is_dataclass(node):
        return
    for one in fields(node):
        value = getattr(node, one.name)
        for child in value if isinstance(value, tuple) else (value,):
            if is_dataclass(child) and not isinstance(child, Span):
                yield child


def _holds(node: Any, line: int, column: int) -> bool:
    span = _span(node)
    return (span.line, span.column) <= (line, column) <= (span.end_line, span.end_column)


def _span(node: Any) -> Span:
    span: Span = node.name.span if isinstance(node, ast.ParamType) else node.span
    return span
