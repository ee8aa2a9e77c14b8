"""Where a statement belongs that stands in the wrong place."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import assert_never

from planc.plan.blocks import BLOCKS, Shape
from planc.plan.scalars import listed
from planc.record import record
from planc.syntax import ast


def home(statement: ast.Statement) -> str | None:
    """Where a misplaced statement belongs."""
    match statement:
        case ast.Setting(name):
            return _homes().get(name.text)
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
    return _nested_homes().get(name)


@record
class _Nested:
    """A block inside a block."""

    kind: str
    block: str
    label: str
    shape: Shape


@functools.cache
def _homes() -> Mapping[str, str]:
    """Where each name belongs: as a key of a block, as a block inside one, as a key of such a block."""
    kinds: dict[str, list[str]] = {}
    for kind, shape in BLOCKS.items():
        for name in shape.names:
            kinds.setdefault(name, []).append(f"`{kind}`")
    keys = {name: f"`{name}` belongs in {listed(found)}" for name, found in kinds.items()}
    inner = {name: _written(one) for one in reversed(_nested()) for name in one.shape.names}
    return {**inner, **_nested_homes(), **keys}


@functools.cache
def _nested_homes() -> Mapping[str, str]:
    """How each block inside a block is written, the first where there are several."""
    return {one.block: _written(one) for one in reversed(_nested())}


def _nested() -> tuple[_Nested, ...]:
    return tuple(
        _Nested(kind, block, label, inner)
        for kind, shape in BLOCKS.items()
        for block, labels in shape.nested.items()
        for label, inner in labels.items()
    )


def _written(nested: _Nested) -> str:
    return f'write `{nested.block} "{nested.label}" {{ ... }}` in `{nested.kind}`'
