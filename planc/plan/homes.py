"""Where a statement belongs that stands in the wrong place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from planc.plan.blocks import BLOCKS, Shape
from planc.plan.scalars import listed
from planc.record import record
from planc.syntax import ast


def home(statement: ast.Statement) -> str | None:
    """Where a misplaced statement belongs."""
    match statement:
        case ast.Setting(name):
            homes = [kind for kind, shape in BLOCKS.items() if name.text in shape.names]
            if homes:
                return f"`{name.text}` belongs in {listed(f'`{kind}`' for kind in homes)}"
            inner = (_written(one) for one in _nested() if name.text in one.shape.names)
            return nested_home(name.text) or next(inner, None)
        case ast.Comparison():
            return "a setting takes `=`; assertions stand in `expect`"
        case ast.Rule():
            homes = [kind for kind, shape in BLOCKS.items() if shape.actions is not None]
            return f"rules stand in {listed(f'`{kind}`' for kind in homes)}"
        case ast.Block(kind):
            return nested_home(kind.text) or "it stands at the top level, outside every block"
        case ast.Param() | ast.Extends() | ast.Import():
            return "it stands at the top level, outside every block"
        case ast.Use():
            return "`use` stands in a block of a plan, of the fragment's kind"
        case ast.Directive(name):
            return nested_home(name.text)
        case _:
            assert_never(statement)


def nested_home(name: str) -> str | None:
    """How a block that stands inside another is written; None for any other name."""
    return next((_written(one) for one in _nested() if one.block == name), None)


@record
class _Nested:
    """A block inside a block."""

    kind: str
    block: str
    label: str
    shape: Shape


def _nested() -> Iterator[_Nested]:
    for kind, shape in BLOCKS.items():
        for block, labels in shape.nested.items():
            yield from (_Nested(kind, block, label, inner) for label, inner in labels.items())


def _written(nested: _Nested) -> str:
    return f'write `{nested.block} "{nested.label}" {{ ... }}` in `{nested.kind}`'
