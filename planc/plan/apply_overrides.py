"""Overrides of settings, and of single arguments of their calls, put in place of what a plan says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planc.plan import codes
from planc.plan.blocks import BLOCKS, setting_paths
from planc.plan.call_arguments import (
    argument_targets,
    call_before,
    own_arguments,
    whole_target,
    with_argument,
)
from planc.plan.overrides import Override
from planc.plan.scope import OriginStep
from planc.plan.unknown_targets import report_unknown_target
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
            report_unknown_target(target, written, resolver.scope)
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
