"""The rest of a plan, for the help of a finding: blocks and settings as the text has them."""

from __future__ import annotations

from collections.abc import Iterator

from planc.plan.blocks import BLOCKS
from planc.plan.keys import keys
from planc.plan.scope import Scope
from planc.syntax import ast


def block_header(kind: str, scope: Scope) -> str | None:
    """`fsdp on dp_shard`, if the plan has such a block."""
    for block in _blocks(kind, scope):
        dims = ", ".join(name.text for name in block.on)
        return f"{kind} on {dims}" if dims else kind
    return None


def rules_block(kind: str, action: str, scope: Scope) -> str | None:
    """The header of a block that has a rule with an action, or that uses a fragment of that name."""
    for block in _blocks(kind, scope):
        rules = (one.action.name.text for one in block.body if isinstance(one, ast.Rule))
        uses = (one.name.text for one in block.body if isinstance(one, ast.Use))
        if action in (*rules, *(use.rpartition(".")[2] for use in uses)):
            return block_header(kind, scope)
    return None


def setting_value(kind: str, key: str, scope: Scope) -> ast.Value | None:
    """The value of a setting of the plan, as it is written."""
    found = (one.value for block in _blocks(kind, scope) for one in _settings(block) if one.name.text == key)
    return next(found, None)


def factor(path: str, scope: Scope) -> int | None:
    """The positive integer that a setting has, by default or as written; None if that is unclear."""
    kind, _, key = path.partition(".")
    shape = BLOCKS[kind]
    value = setting_value(kind, key, scope)
    if value is not None:
        return positive_integer(value, scope)
    if not scope.statements or not scope.is_whole:
        return None
    # A key that the block does not have may be another word for this one.
    written = {one.name.text for block in _blocks(kind, scope) for one in _settings(block)}
    default = next(one.metadata["default"] for one in keys(shape.record) if one.name == key)
    return default if isinstance(default, int) and written <= set(shape.names) else None


def positive_integer(value: ast.Value, scope: Scope) -> int | None:
    """The value of a plain positive integer, or of a parameter that is one."""
    written, _ = scope.lookup(value)
    if not isinstance(written, ast.Number) or written.unit is not None or not isinstance(written.value, int):
        return None
    return written.value if written.value > 0 else None


def _blocks(kind: str, scope: Scope) -> Iterator[ast.Block]:
    return (
        statement
        for statement in scope.statements
        if isinstance(statement, ast.Block) and statement.kind.text == kind
    )


def _settings(block: ast.Block) -> Iterator[ast.Setting]:
    return (one for one in block.body if isinstance(one, ast.Setting))
