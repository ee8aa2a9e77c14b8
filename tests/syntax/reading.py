"""Parsing for tests: one call, and what a span covers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

from planc.diagnostics import Diagnostic
from planc.source import SourceFile, Span
from planc.syntax import ast
from planc.syntax.parse import parse


def parsed(text: str) -> ast.PlanFile:
    """The tree of a text that has no syntax error."""
    file, problems = parse(SourceFile("x.plan", text))
    assert file is not None, [f"{one.primary.span} {one.primary.text}" for one in problems]
    assert problems == ()
    return file


def refused(text: str) -> Diagnostic:
    """The one finding in a text that does not parse."""
    file, problems = parse(SourceFile("x.plan", text))
    assert file is None
    (problem,) = problems
    return problem


def covered(text: str, span: Span) -> str:
    """What a span covers of a text."""
    lines = text.split("\n")[span.line - 1 : span.end_line]
    lines[-1] = lines[-1][: span.end_column - 1]
    lines[0] = lines[0][span.column - 1 :]
    return "\n".join(lines)


def nodes(node: object) -> Iterator[object]:
    """A node and all below it."""
    if isinstance(node, tuple):
        for item in node:
            yield from nodes(item)
    elif is_dataclass(node) and not isinstance(node, Span):
        yield node
        for field in fields(node):
            yield from nodes(getattr(node, field.name))
