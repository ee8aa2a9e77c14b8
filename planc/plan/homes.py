"""The right place for a misplaced statement."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import Field
from typing import Any, assert_never

from planc.plan.blocks import BLOCKS, Shape
from planc.plan.foreign_help import foreign_help, meant_by
from planc.plan.keys import keys, type_of
from planc.plan.scalars import listed
from planc.plan.scope import Scope
from planc.plan.surroundings import rules_block
from planc.record import record
from planc.styles import BY_NAME, Style
from planc.syntax import ast

_TOP_LEVEL = "move it to the top level, outside every block"


def home(statement: ast.Statement, *, scope: Scope) -> str | None:
    """Return where to move a misplaced statement. A setting belongs where its value is of the right type."""
    match statement:
        case ast.Setting(name, value):
            meant = meant_by(statement, kind="", taken=(), scope=scope)
            return _home_of_setting(name.text, value, scope) or (meant.help if meant else None)
        case ast.Comparison():
            return "write `=` for a setting, or move the comparison to `expect`"
        case ast.Rule():
            homes = [kind for kind, shape in BLOCKS.items() if shape.actions is not None]
            return f"move the rule to {listed(f'`{kind}`' for kind in homes)}"
        case ast.Block(kind):
            is_known = kind.text in BLOCKS or kind.text == "expect"
            foreign = None if is_known else foreign_help(kind.text)
            return nested_home(kind.text, statement.label) or foreign or _TOP_LEVEL
        case ast.Param() | ast.Extends() | ast.Import() | ast.Extension():
            return _TOP_LEVEL
        case ast.Use():
            return "move `use` to a block of the fragment's kind"
        case ast.Directive(name):
            return nested_home(name.text) or foreign_help(name.text)
        case _:
            assert_never(statement)


def rule_instead(kind: str, shape: Shape, statement: ast.Setting | ast.Directive, scope: Scope) -> str | None:
    """The rule to write for `mode = full` in a block of rules; None where a key of the block may be meant."""
    if shape.actions is None:
        return None
    words = {statement.name.text}
    if isinstance(statement, ast.Setting) and isinstance(statement.value, ast.Ref | ast.Call):
        words.add(statement.value.name.text)
    action = next((word for word in shape.actions if word in words), None)
    if action is None and (shape.names or shape.directives):
        return None
    if action in BY_NAME:
        return _style_instead(BY_NAME[action], scope)
    example = f'`"model.layers.*" -> {action or next(iter(shape.actions))}`'
    return f"write a rule that names the modules: {example}"


def _style_instead(style: Style, scope: Scope) -> str:
    """The help for a style without a pattern, which is for some modules only."""
    kind = "tensor_parallel"
    if style.together and (there := rules_block(kind, style.name, scope)):
        return f"remove it: `{there}` already does this"
    together = foreign_help(style.name, kind=kind) if style.together else None
    return together or f"write a rule that names the modules: `{style.example}`"


def _home_of_setting(name: str, value: ast.Value, scope: Scope) -> str | None:
    fitting = [f"`{kind}`" for kind, one in _homes().get(name, ()) if _fits(one, value, scope)]
    if fitting:
        return f"move it to {listed(fitting)}"
    if name in _nested_homes():
        return _nested_homes()[name]
    inside = (
        _written(one)
        for one in _nested()
        for spec_field in keys(one.shape.record)
        if spec_field.name == name and _fits(spec_field, value, scope)
    )
    return next(inside, None)


def _fits(spec_field: Field[Any], value: ast.Value, scope: Scope) -> bool:
    """Whether a setting takes a value; its findings are not reported."""
    trial = Scope(scope.params)
    type_of(spec_field).convert(value, trial)
    return not trial.diagnostics


def nested_home(name: str, label: ast.Text | None = None) -> str | None:
    """Return how to write a block that is nested in another; None for any other name."""
    if label is not None:
        labelled = {(nested.block, nested.label): nested for nested in _nested()}
        meant = labelled.get((name, label.value))
        return _written(meant) if meant else _nested_homes().get(name)
    return _nested_homes().get(name)


@record
class _Nested:
    """A block inside a block."""

    kind: str
    block: str
    label: str
    shape: Shape


@functools.cache
def _homes() -> Mapping[str, Sequence[tuple[str, Field[Any]]]]:
    """The blocks that have a key of each name."""
    found: dict[str, list[tuple[str, Field[Any]]]] = {}
    for kind, shape in BLOCKS.items():
        for spec_field in keys(shape.record):
            found.setdefault(spec_field.name, []).append((kind, spec_field))
    return found


@functools.cache
def _nested_homes() -> Mapping[str, str]:
    """Return how to write each nested block, in the first block that may hold it."""
    return {one.block: _written(one) for one in reversed(_nested())}


@functools.cache
def _nested() -> tuple[_Nested, ...]:
    return tuple(
        _Nested(kind, block, label, inner)
        for kind, shape in BLOCKS.items()
        for block, labels in shape.nested.items()
        for label, inner in labels.items()
    )


def _written(nested: _Nested) -> str:
    return f'write `{nested.block} "{nested.label}" {{ ... }}` in `{nested.kind}`'
