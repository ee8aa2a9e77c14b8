"""Parameters: their types, ranges, and what sets them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from planc.diagnostics import Diagnostic, Label
from planc.diagnostics.suggest import closest
from planc.plan import codes
from planc.plan.overrides import Override
from planc.plan.scalars import Bool, Float, Int, Text, ValueType, wrong_type
from planc.plan.scope import OriginStep, ParamValue, Scope, references
from planc.record import record
from planc.syntax import ast

_TYPE_NAMES = ("int", "float", "string", "bool")
_WORDS = ("true", "false", "none", "auto", "on", "override", "param")
"""Words that readers would take for keywords."""

_NOT_FINITE = ("nan", "inf", "infinity")


@record
class Params:
    """Parameters by name with their values, the names of faulty ones, and the overrides of anything else."""

    values: Mapping[str, ParamValue]
    broken: frozenset[str]
    other_overrides: tuple[Override, ...]


def resolve_params(
    file: ast.PlanFile, overrides: Sequence[Override]
) -> tuple[Params, tuple[Diagnostic, ...]]:
    """The parameters of a file under the overrides, and findings."""
    scope = Scope({})
    values: dict[str, ParamValue] = {}
    types: dict[str, ValueType] = {}
    broken: set[str] = set()
    for param in (statement for statement in file.statements if isinstance(statement, ast.Param)):
        name = param.name.text
        if name in values:
            first = Label(values[name].param.name.span, "first given here")
            is_base = values[name].param.span.file != param.span.file
            help = f"remove one of them; `--set {name}=...` gives another value for one run"
            if is_base:
                help = f"write `override {name} = ...` to change the base's value"
            text = f"a second parameter `{name}`"
            scope.report(codes.DUPLICATE, param.name.span, text, secondary=(first,), help=help)
            continue
        wanted = _type(param, scope)
        found = _convert(param.default, wanted, scope) if wanted is not None else None
        values[name] = ParamValue(param, found or param.default, ())
        if found is not None and wanted is not None:
            types[name] = wanted
        else:
            broken.add(name)
    rest: list[Override] = []
    for override in overrides:
        target = override.assignment.target.text
        if target not in values:
            rest.append(override)
        elif target in types:
            new = _convert(override.assignment.value, types[target], scope)
            before = values[target]
            step = OriginStep(override.kind, override.assignment.span, override.text)
            values[target] = ParamValue(before.param, new or before.value, (*before.via, step))
    kept = {name: value for name, value in values.items() if name not in broken}
    return Params(kept, frozenset(broken), tuple(rest)), tuple(scope.diagnostics)


def used_names(file: ast.PlanFile, overrides: Sequence[Override]) -> frozenset[str]:
    """Every bare word that stands where a value is read, in the file and in what overrides it."""
    values = (override.assignment.value for override in overrides)
    outside = (ref.param_name for value in values for ref in references(value))
    return frozenset((*outside, *(word for statement in file.statements for word in words(statement))))


def words(statement: ast.Statement) -> Iterator[str]:
    """The parameters that a statement may name, as the plan knows them."""
    return (ref.param_name for ref in _bare_words(statement))


def _bare_words(statement: ast.Statement) -> Iterator[ast.Ref]:
    match statement:
        case ast.Block(body=body):
            for inner in body:
                yield from _bare_words(inner)
        case ast.Setting(value=value) | ast.Comparison(value=value):
            yield from references(value)
        case ast.Rule(action=action):
            yield from references(action)
        case _:
            return


def misspelled(
    file: ast.PlanFile, idle: Iterable[str], diagnostics: Sequence[Diagnostic], *, params: Collection[str]
) -> frozenset[str]:
    """The parameters that a wrong word most likely means: one with an error, or one of an unused fragment."""
    faulty = {finding.primary.span for finding in diagnostics}
    refs = [ref for statement in file.statements for ref in _bare_words(statement)]
    wrong = {ref.param_name for ref in refs if ref.span in faulty}
    sound = {ref.param_name for ref in refs} - wrong
    names = set()
    for word in ({*idle} | wrong) - sound - {*params}:
        alias, _, last = word.rpartition(".")
        near = {name.rpartition(".")[2]: name for name in params if name.rpartition(".")[0] == alias}
        if (meant := closest(last, near)) is not None:
            names.add(near[meant])
    return frozenset(names)


def report_unused(
    params: Mapping[str, ParamValue], used: frozenset[str], scope: Scope, *, idle: frozenset[str]
) -> None:
    """Reports parameters that are never used, or whose override has no effect."""
    for name, value in params.items():
        if name in used:
            continue
        if name not in idle:
            text, help = f"`{name}` is never used", f"write `= {name}` in a setting, or remove `param {name}`"
            scope.report(codes.UNUSED_PARAM, value.param.name.span, text, help=help)
        elif value.via and (span := (step := value.via[-1]).span) is not None:
            text = f"this has no effect: every use of `{name}` is overridden or unused"
            help = f"remove `override {name} = ...`" if step.kind == "override" else f"remove `{step.text}`"
            scope.report(codes.UNUSED_PARAM, span, text, help=help)


def _convert(value: ast.Value, wanted: ValueType, scope: Scope) -> ast.Value | None:
    """The value as its type has it, or None after a report: `1` of a float parameter is a float."""
    if isinstance(value, ast.Ref) and isinstance(wanted, Int | Float):
        help = "write the value: a parameter can't refer to another parameter"
        if value.name.text.lower() in _NOT_FINITE:
            help = f"write a finite number: a plan can't hold `{value.name.text}`"
        wrong_type(wanted, value, scope, (), help=help)
        return None
    num_before = len(scope.diagnostics)
    value, _ = scope.lookup(value)
    converted = wanted.convert(value, scope)
    if converted is None:
        scope.diagnostics[num_before:] = [
            one if one.help else replace(one, help=f"write {wanted.describe(mark='`')}")
            for one in scope.diagnostics[num_before:]
        ]
        return None
    return replace(value, value=converted) if isinstance(value, ast.Number) else value


def _type(param: ast.Param, scope: Scope) -> ValueType | None:
    """The type with its range, or None after a report."""
    written = param.type
    name = written.name.text
    if param.name.text.rpartition(".")[2] in _WORDS:
        text = f"`{param.name.text}` is a reserved word"
        scope.report(codes.DUPLICATE, param.name.span, text, help="choose another name")
        return None
    if name not in _TYPE_NAMES:
        scope.unknown(codes.UNKNOWN_NAME, written.name, _TYPE_NAMES, text=f"`{name}` is not a parameter type")
        return None
    if written.low is None or written.high is None:
        types: dict[str, ValueType] = {"int": Int(), "float": Float(), "string": Text(), "bool": Bool()}
        return types[name]
    return _range(written.name, written.low, written.high, scope)


def _range(name: ast.Name, low: ast.Number, high: ast.Number, scope: Scope) -> ValueType | None:
    if name.text not in ("int", "float"):
        scope.report(
            codes.WRONG_ARGUMENTS, name.span, f"a `{name.text}` can't have a range", help="remove the range"
        )
        return None
    bounds: ValueType = Int() if name.text == "int" else Float()
    if any(bounds.convert(bound, scope) is None for bound in (low, high)):
        return None
    if low.value > high.value:
        help = f"write `{high.text}..{low.text}`"
        scope.report(codes.OUT_OF_RANGE, low.span.to(high.span), "this range is empty", help=help)
        return None
    if isinstance(low.value, int) and isinstance(high.value, int) and name.text == "int":
        return Int(low.value, high.value)
    return Float(low.value, high.value)
