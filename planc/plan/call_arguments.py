"""Single arguments of the calls that settings have: `optimizer.kind.lr` of `kind = adamw(lr = 3e-4)`."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, replace
from typing import Any

from planc.plan import codes
from planc.plan.blocks import settings
from planc.plan.extensions import OrExtension
from planc.plan.keys import example, keys, type_of
from planc.plan.scalars import ValueType, listed
from planc.plan.scope import OriginStep, Scope, references
from planc.plan.types import Rest, calls_of
from planc.plan.written import Written
from planc.source import SourceFile, Span
from planc.syntax import ast
from planc.syntax.parse import parse_assignment

_OUTSIDE = ("set", "environment")
"""The kinds of origins that no file has."""


@functools.cache
def argument_targets() -> Mapping[str, str]:
    """The setting of each argument that one of its calls takes: `optimizer.kind` of `optimizer.kind.lr`."""
    return {f"{path}.{argument}": path for path, _ in settings() for argument in arguments(path)}


def whole_target(target: ast.Name, written: Mapping[str, Written]) -> ast.Name:
    """The target with the setting that its block leaves out: `optimizer.kind.lr` for `optimizer.lr`.

    Unchanged if several settings of the block have such an argument, or none. A setting counts first whose
    call in the plan takes it.
    """
    block, _, argument = target.text.rpartition(".")
    if target.text in _fields() or target.text in argument_targets():
        return target
    owners = [path for path, _ in settings() if path.rpartition(".")[0] == block and takers(path, argument)]
    fitting = [
        path
        for path in owners
        if name_of(call_before(path, written, at=target.span)) in takers(path, argument)
    ]
    found = fitting or owners
    return replace(target, text=f"{found[0]}.{argument}") if len(found) == 1 else target


def via_parameters(value: ast.Value, scope: Scope) -> tuple[OriginStep, ...]:
    """The parameters that a value names, each with what sets it."""
    named = (scope.params[ref.param_name] for ref in references(value) if ref.param_name in scope.params)
    return tuple(
        step
        for one in named
        for step in (OriginStep("parameter", one.param.name.span, one.param.name.text), *one.via)
    )


def argument_origins(
    path: str, value: ast.Value, steps: Sequence[OriginStep], scope: Scope
) -> Iterator[tuple[str, tuple[OriginStep, ...]]]:
    """The origin of each argument of a call, which is the value of the setting `path` that `steps` led to."""
    if not isinstance(value, ast.Call):
        return
    kept = [step for step in steps if step.kind not in (*_OUTSIDE, "written", "default")]
    for argument in value.arguments:
        if argument.name is None:
            continue
        target = f"{path}.{argument.name.text}"
        short = f"{path.rpartition('.')[0]}.{argument.name.text}"
        given = (
            step
            for step in steps
            if step.kind in _OUTSIDE
            and any(f"{name}=" in step.text.replace(" ", "") for name in (target, short, path))
        )
        first = next(given, OriginStep("written", argument.span, ""))
        yield target, (first, *kept, *via_parameters(argument.value, scope))
        yield from argument_origins(target, argument.value, steps, scope)


def takers(setting: str, argument: str) -> tuple[str, ...]:
    """The calls of a setting that take an argument."""
    return tuple(
        name for name, case in _cases(setting).items() if argument in {key.name for key in keys(case)}
    )


def argument_home(block: str, argument: str) -> str | None:
    """Return what to write for a key that is an argument of one of a block's calls; None for others."""
    owners = [path for path, _ in settings() if path.rpartition(".")[0] == block and takers(path, argument)]
    if not owners:
        return None
    lines = listed(f"`{_line_with(owner, argument)}`" for owner in owners)
    return f"`{argument}` is an argument of a call: write {lines}"


def _line_with(setting: str, argument: str) -> str:
    """`source = jsonl(..., field = "text")`: a setting with the first call that takes an argument."""
    name = takers(setting, argument)[0]
    fields = keys(_cases(setting)[name])
    given = next(one for one in fields if one.name == argument)
    others = "..., " if any(one.metadata["default"] is MISSING for one in fields if one is not given) else ""
    return f"{setting.rpartition('.')[2]} = {name}({others}{argument} = {example(given) or '...'})"


def call_before(setting: str, written: Mapping[str, Written], *, at: Span) -> ast.Value | None:
    """Return a plan's value of a setting, a default `at` a place; None if there is nothing."""
    kind, *between, name = setting.split(".")
    block = written.get(kind)
    if block is not None and between:
        block = block.nested.get((between[0], between[1]))
    if block is not None and name in block.values:
        return block.values[name][0]
    return _default(setting, at=at)


def name_of(value: ast.Value | None) -> str | None:
    """The name of a call, which may stand without arguments."""
    call = _as_call(value)
    return call.name.text if call else None


def with_argument(
    before: ast.Value | None,
    argument: ast.Name,
    assignment: ast.Assignment,
    *,
    scope: Scope,
    setting: str,
) -> ast.Call | None:
    """The call with another value of one argument and all else as it was; None after a report."""
    call = _as_call(before)
    case = _cases(setting).get(call.name.text) if call else None
    own = own_arguments(setting, call, scope)
    if call is not None and own:
        if argument.text not in own:
            _report_other_call(call, argument, scope, setting=setting, known=own)
            return None
        given = ast.Argument(argument, assignment.value, assignment.span)
        others = (item for item in call.arguments if item.name is None or item.name.text != argument.text)
        return replace(call, arguments=(*others, given))
    if call is None or case is None:
        _report_no_call(before, argument, scope, setting=setting)
        return None
    known = {key.name: key for key in keys(case)}
    if argument.text not in known:
        _report_other_call(call, argument, scope, setting=setting, known=tuple(known))
        return None
    if isinstance(type_of(known[argument.text]), Rest):
        help = f"set the whole call: `{setting} = {call.name.text}(...)`"
        text = f"`{argument.text}` can't be set by name in `{call.name.text}(...)`"
        scope.report(codes.UNKNOWN_TARGET, argument.span, text, help=help)
        return None
    given = ast.Argument(argument, assignment.value, assignment.span)
    return replace(call, arguments=(*_others(call, known[argument.text]), given))


def own_arguments(setting: str, before: ast.Value | None, scope: Scope) -> tuple[str, ...]:
    """The arguments of a setting's value that the plan's own code registers; empty for any other value."""
    name, wanted = name_of(before), _fields().get(setting)
    if name is None or wanted is None or not isinstance(of := type_of(wanted), OrExtension):
        return ()
    registered = scope.registry.get(of.kind.word, {}).get(name)
    return (
        () if registered is None else tuple(parameter.name for parameter in registered.declaration.parameters)
    )


def _others(call: ast.Call, changed: Field[Any]) -> Iterator[ast.Argument]:
    """The arguments of a call but one, which may stand without its name."""
    is_positional = changed.metadata["positional"]
    for argument in call.arguments:
        if argument.name is None and is_positional:
            is_positional = False
        elif argument.name is None or argument.name.text != changed.name:
            yield argument


def _as_call(value: ast.Value | None) -> ast.Call | None:
    match value:
        case ast.Call():
            return value
        case ast.Ref(name):
            return ast.Call(name, (), value.span)
        case _:
            return None


def _report_no_call(before: ast.Value | None, argument: ast.Name, scope: Scope, *, setting: str) -> None:
    """Reports that a setting has no call whose argument could be changed."""
    calls = listed(f"`{setting} = {name}(...)`" for name in takers(setting, argument.text))
    text = f"the plan has no call for `{setting}`" if before is None else f"`{setting}` is not a call here"
    scope.report(codes.UNKNOWN_TARGET, argument.span, text, help=f"set the whole call: {calls}")


def _report_other_call(
    call: ast.Call, argument: ast.Name, scope: Scope, *, setting: str, known: tuple[str, ...]
) -> None:
    """Reports an argument that only other calls of the setting take."""
    name = call.name.text
    others = listed(f"`{other}`" for other in takers(setting, argument.text))
    of_others = f"; `{argument.text}` is an argument of {others}" if others else ""
    has = f"`{name}` takes {listed(known, last='and')}" if known else f"`{name}` does not take arguments"
    text = f"the plan's `{setting}` is `{name}`, which has no `{argument.text}`"
    scope.report(codes.UNKNOWN_TARGET, argument.span, text, help=f"{has}{of_others}")


def arguments(setting: str) -> tuple[str, ...]:
    """All arguments of a setting's calls; empty if the name is not a setting, or takes no calls."""
    if setting not in _fields():
        return ()
    cases = _cases(setting).values()
    return tuple(dict.fromkeys(one.name for case in cases for one in keys(case)))


def _cases(setting: str) -> Mapping[str, type[Any]]:
    return calls_of(_type(setting))


def _type(setting: str) -> ValueType:
    return type_of(_fields()[setting])


@functools.cache
def _fields() -> Mapping[str, Field[Any]]:
    return dict(settings())


def _default(setting: str, *, at: Span) -> ast.Value | None:
    """A default as a plan would write it, all of it at one place."""
    default = _fields()[setting].metadata["default"]
    if default is MISSING or default is None:
        return None
    text = f"x = {_type(setting).render(default)}"
    assignment, _ = parse_assignment(SourceFile(at.file, text))
    assert assignment is not None, f"a default does not parse: {text}"
    return _placed(assignment.value, at)


def _placed(value: ast.Value, at: Span) -> ast.Value:
    match value:
        case ast.Call(name, arguments):
            return ast.Call(replace(name, span=at), arguments, at)
        case ast.Ref(name):
            return replace(value, name=replace(name, span=at))
        case _:
            return value
