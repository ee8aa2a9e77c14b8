"""The plan's own code that a graph runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from planc.extend.reference import Extension
from planc.graph.graph import Graph
from planc.graph.op import Op


def extensions_of(graph: Graph) -> tuple[tuple[Op, Extension], ...]:
    """Each extension with the op that loads it, in the order of the graph."""
    return tuple((op, extension) for op in graph.ops() for extension in _inside(op))


def _inside(value: Any) -> Iterator[Extension]:
    match value:
        case Extension():
            yield value
        case tuple():
            for item in value:
                yield from _inside(item)
        case _ if is_dataclass(value):
            for field in fields(value):
                if field.name not in ("span", "body"):
                    yield from _inside(getattr(value, field.name))
