"""Overrides of nothing, with what was probably meant."""

from __future__ import annotations

from collections.abc import Mapping

from planc.diagnostics import Applicability, Fix
from planc.plan import codes
from planc.plan.blocks import BLOCKS, setting_paths
from planc.plan.call_arguments import argument_targets, arguments, call_before, name_of, takers
from planc.plan.foreign_help import foreign_help, meant_setting
from planc.plan.scalars import listed
from planc.plan.scope import Scope
from planc.plan.written import Written
from planc.syntax import ast

_TEXT = "not a parameter or a setting of the plan"


def report_unknown_target(target: ast.Name, written: Mapping[str, Written], scope: Scope) -> None:
    """Reports a whole block, an argument on its own, the key of another block or none, or a slip."""
    if target.text in scope.broken:
        return
    paths = tuple(setting_paths())
    block, _, written_key = target.text.rpartition(".")
    key = (meant_setting(written_key) or written_key).rpartition(".")[2]
    inside = [path.removeprefix(f"{target.text}.") for path in paths if path.startswith(f"{target.text}.")]
    same_key = [f"`{path}`" for path in paths if path.rpartition(".")[2] == key]
    siblings = [path.removeprefix(f"{block}.") for path in paths if path.rpartition(".")[0] == block]
    if inside:
        help = f"use a setting of `{target.text}`: {listed(f'`{one}`' for one in inside)}"
    elif settings := _settings_with(key, target, written):
        _report_argument(target, key, settings, scope)
        return
    elif taken := arguments(block):
        help = f"use an argument of `{block}`: {listed(f'`{one}`' for one in taken)}"
        scope.unknown(codes.UNKNOWN_TARGET, target, taken, text=_TEXT, help=help, within=f"{block}.")
        return
    elif same_key and block not in paths:
        help = f"did you mean {listed(same_key)}?"
    elif foreign := foreign_help(written_key):
        help = foreign
    elif siblings:
        help = f"use a setting of `{block}`: {listed(f'`{sibling}`' for sibling in siblings)}"
        of_calls = (one for path in siblings for one in arguments(f"{block}.{path}"))
        known = tuple(dict.fromkeys((*siblings, *of_calls)))
        scope.unknown(codes.UNKNOWN_TARGET, target, known, text=_TEXT, help=help, within=f"{block}.")
        return
    else:
        help = "name a setting with its block, as in `mesh.tp`"
        names = (*scope.params, *paths, *argument_targets())
        scope.unknown(codes.UNKNOWN_TARGET, target, names, text=_TEXT, help=help)
        return
    scope.report(codes.UNKNOWN_TARGET, target.span, _TEXT, help=help)


def _report_argument(target: ast.Name, key: str, settings: tuple[str, ...], scope: Scope) -> None:
    """Reports an argument without its setting. One argument is offered, never the whole call, which would
    reset the other arguments to their defaults."""
    meant = [f"{setting}.{key}" for setting in settings]
    fix = Fix(target.span, meant[0], Applicability.SAFE) if len(meant) == 1 else None
    written = listed(f"`{path}=...`" for path in meant)
    help = f"write {written} to change this argument alone"
    scope.report(codes.UNKNOWN_TARGET, target.span, _TEXT, help=help, fix=fix)


def _settings_with(argument: str, target: ast.Name, written: Mapping[str, Written]) -> tuple[str, ...]:
    """The settings that take such an argument in the block that a target begins with, or in any if it
    begins with none; those alone, if there are some, whose call in the plan takes it."""
    kind = target.text.partition(".")[0]
    calls_by_setting = {
        setting: takers(setting, argument)
        for path, setting in argument_targets().items()
        if path == f"{setting}.{argument}" and (kind not in BLOCKS or kind == setting.partition(".")[0])
    }
    fitting = tuple(
        one for one, calls in calls_by_setting.items() if _name_before(one, target, written) in calls
    )
    return fitting or tuple(calls_by_setting)


def _name_before(setting: str, target: ast.Name, written: Mapping[str, Written]) -> str | None:
    return name_of(call_before(setting, written, at=target.span))
