"""Overrides of settings, and of single arguments of their calls, put in place of what a plan says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from planc.diagnostics import Applicability, Fix
from planc.plan import codes
from planc.plan.blocks import BLOCKS, setting_paths
from planc.plan.call_arguments import (
    argument_targets,
    arguments,
    call_before,
    name_of,
    own_arguments,
    takers,
    whole_target,
    with_argument,
)
from planc.plan.foreign_help import foreign_help, meant_setting
from planc.plan.nested import freely_labelled
from planc.plan.overrides import Override
from planc.plan.scalars import listed
from planc.plan.scope import OriginStep, Scope
from planc.plan.written import Resolver, Written
from planc.source import Span
from planc.syntax import ast


def apply_overrides(targets: Sequence[Override], written: dict[str, Written], resolver: Resolver) -> None:
    """Puts overrides in place of what the file says, the weakest first; unknown targets are reported.

    `optimizer.lr` is the argument of the block's call that takes it: `optimizer.kind.lr`.
    """
    settings = frozenset(setting_paths())
    arguments = argument_targets()
    for override in targets:
        target = whole_target(override.assignment.target, written)
        override = replace(override, assignment=replace(override.assignment, target=target))
        setting, _, argument = target.text.rpartition(".")
        before = call_before(setting, written, at=target.span) if setting in settings else None
        is_own = argument in own_arguments(setting, before, resolver.scope)
        if target.text not in settings and target.text not in arguments and not is_own:
            _report_unknown_target(target, written, resolver.scope)
            continue
        if target.text in settings:
            setting, argument = target.text, ""
        kind = setting.partition(".")[0]
        if kind not in written and BLOCKS[kind].on:
            text, help = f"the plan has no `{kind}` block to set this in", "add the block to the plan"
            resolver.scope.report(codes.UNKNOWN_TARGET, target.span, text, help=help)
        elif argument:
            _apply_argument(override, written, resolver, setting=setting, argument=argument)
        else:
            _apply_setting(override, written, resolver)


def _apply_setting(override: Override, written: dict[str, Written], resolver: Resolver) -> None:
    assignment = override.assignment
    block = _block(assignment.target.text, written, resolver, at=assignment.span)
    name = assignment.target.text.rpartition(".")[2]
    before = block.values[name][2] if name in block.values else ()
    step = OriginStep(override.kind, assignment.span, override.text)
    block.values[name] = (assignment.value, assignment.span, (step, *before))
    for argument in argument_targets():
        if argument.startswith(f"{assignment.target.text}."):
            resolver.spans.pop(argument, None)


def _apply_argument(
    override: Override, written: dict[str, Written], resolver: Resolver, *, setting: str, argument: str
) -> None:
    """Changes one argument of the call that the plan has for a setting, or that it has by default."""
    assignment = override.assignment
    name = setting.rpartition(".")[2]
    span = assignment.target.span
    call = call_before(setting, written, at=span)
    # A plan on one line, as every override is.
    last = Span(span.file, span.line, span.end_column - len(argument), span.end_line, span.end_column)
    changed = with_argument(call, ast.Name(argument, last), assignment, scope=resolver.scope, setting=setting)
    if changed is None:
        return
    block = _block(setting, written, resolver, at=assignment.span)
    _, place, before = block.values.get(name, (None, assignment.span, (OriginStep("default", None, ""),)))
    step = OriginStep(override.kind, assignment.span, override.text)
    block.values[name] = (changed, place, (step, *before))
    # What is wrong with the argument is shown where it was set, the rest where the plan has the call.
    resolver.spans[f"{setting}.{argument}"] = assignment.span


def _block(setting: str, written: dict[str, Written], resolver: Resolver, *, at: Span) -> Written:
    """The block that holds a setting; an empty one where the plan has none."""
    kind, *between, _ = setting.split(".")
    block = written.setdefault(kind, Written(at, at))
    resolver.spans.setdefault(kind, at)
    if between:
        block = block.nested.setdefault((between[0], between[1]), Written(at, at))
        resolver.spans.setdefault(".".join((kind, *between)), at)
    return block


_TEXT = "not a parameter or a setting of the plan"


def _report_unknown_target(target: ast.Name, written: Mapping[str, Written], scope: Scope) -> None:
    """Reports a whole block, an argument on its own, the key of another block or none, or a slip."""
    if target.text in scope.broken:
        return
    paths = tuple(setting_paths())
    block, _, written_key = target.text.rpartition(".")
    key = (meant_setting(written_key) or written_key).rpartition(".")[2]
    inside = [path.removeprefix(f"{target.text}.") for path in paths if path.startswith(f"{target.text}.")]
    same_key = [f"`{path}`" for path in paths if path.rpartition(".")[2] == key]
    siblings = [path.removeprefix(f"{block}.") for path in paths if path.rpartition(".")[0] == block]
    if of_labelled := _help_on_labelled(target.text):
        help = of_labelled
    elif inside:
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


def _help_on_labelled(target: str) -> str:
    """The help on a key of a block that a plan names, `data.eval.NAME.KEY`: no override reaches it."""
    kind, *path = target.split(".")
    if len(path) < 3 or kind not in BLOCKS or path[0] not in freely_labelled(BLOCKS[kind].record):
        return ""
    nested, label, key = path[:3]
    return (
        f'change `{key}` in `{nested} "{label}"` of the plan: overrides do not reach blocks that a plan names'
    )


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
