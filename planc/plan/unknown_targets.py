"""Overrides of nothing, with what was probably meant."""

from __future__ import annotations

from collections.abc import Iterator

from planc.plan import codes
from planc.plan.blocks import BLOCKS, setting_paths
from planc.plan.scalars import listed
from planc.plan.scope import Scope
from planc.plan.types import Variant, keys, type_of
from planc.syntax import ast

_TEXT = "neither a parameter nor a setting of the plan"


def report_unknown_target(target: ast.Name, scope: Scope) -> None:
    """Reports a whole block, an argument on its own, the key of another block or none, or a slip."""
    if target.text in scope.broken:
        return
    paths = tuple(setting_paths())
    block, _, key = target.text.rpartition(".")
    inside = [path.removeprefix(f"{target.text}.") for path in paths if path.startswith(f"{target.text}.")]
    same_key = [f"`{path}`" for path in paths if path.rpartition(".")[2] == key]
    beside = [path.removeprefix(f"{block}.") for path in paths if path.rpartition(".")[0] == block]
    if target.text.partition(".")[0] == "expect":
        help = "expectations are not set: they say what the settings must come to"
    elif inside:
        help = f"`{target.text}` has the settings {listed(inside, last='and')}"
    elif calls := tuple(_calls(block, key)):
        help = f"`{key}` is an argument: write {listed(calls)}"
    elif same_key:
        help = f"did you mean {listed(same_key)}?"
    elif beside:
        help = f"`{block}` has the settings {listed(beside, last='and')}"
        scope.unknown(codes.UNKNOWN_TARGET, target, beside, text=_TEXT, help=help, within=f"{block}.")
        return
    else:
        help = "a setting is named with its block, as in `mesh.tp`"
        scope.unknown(codes.UNKNOWN_TARGET, target, (*scope.params, *paths), text=_TEXT, help=help)
        return
    scope.report(codes.UNKNOWN_TARGET, target.span, _TEXT, help=help)


def _calls(path: str, argument: str) -> Iterator[str]:
    """The settings of a block, or the one setting, that take such an argument."""
    kind, _, setting = path.partition(".")
    for spec_field in keys(BLOCKS[kind].record) if kind in BLOCKS else ():
        found = type_of(spec_field)
        if isinstance(found, Variant) and setting in ("", spec_field.name):
            for name, case in found.cases.items():
                if argument in {one.name for one in keys(case)}:
                    yield f"`{kind}.{spec_field.name} = {name}({argument} = ...)`"
