"""Parameters: their types, ranges, and what sets them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planc.diagnostics import Diagnostic, Label
from planc.plan import codes
from planc.plan.overrides import Override
from planc.plan.scope import OriginStep, ParamValue, Scope
from planc.plan.types import Bool, Float, Int, Text, ValueType
from planc.syntax import ast

_TYPE_NAMES = ("int", "float", "string", "bool")


def resolve_params(
    file: ast.PlanFile, overrides: Sequence[Override]
) -> tuple[Mapping[str, ParamValue], tuple[Override, ...], tuple[Diagnostic, ...]]:
    """Parameters by name with their values, the overrides that name something else, and findings."""
    scope = Scope({})
    params: dict[str, ParamValue] = {}
    for param in (statement for statement in file.statements if isinstance(statement, ast.Param)):
        name = param.name.text
        if name in params:
            first = Label(params[name].param.name.span, "first given here")
            scope.report(codes.DUPLICATE, param.name.span, f"a second parameter `{name}`", secondary=(first,))
        elif _check(param, param.default, scope):
            params[name] = ParamValue(param, param.default, ())
    rest: list[Override] = []
    for override in overrides:
        target = override.assignment.target.text
        if target not in params:
            rest.append(override)
        elif _check(params[target].param, override.assignment.value, scope):
            step = OriginStep(override.kind, override.assignment.span, override.text)
            params[target] = ParamValue(
                params[target].param, override.assignment.value, (*params[target].via, step)
            )
    return params, tuple(rest), tuple(scope.diagnostics)


def _check(param: ast.Param, value: ast.Value, scope: Scope) -> bool:
    """Whether `value` is of the parameter's type, in its range; reports where it is not."""
    wanted = _type(param.type, scope)
    return wanted is not None and wanted.convert(value, scope) is not None


def _type(written: ast.ParamType, scope: Scope) -> ValueType | None:
    name = written.name.text
    low = written.low.value if written.low else None
    high = written.high.value if written.high else None
    if written.low is not None and name not in ("int", "float"):
        scope.report(codes.WRONG_ARGUMENTS, written.name.span, f"`{name}` has no range")
        return None
    match name:
        case "int":
            if isinstance(low, float) or isinstance(high, float):
                scope.report(codes.WRONG_TYPE, written.name.span, "the range of an int is of integers")
                return None
            return Int(low, high)
        case "float":
            return Float(low, high)
        case "string":
            return Text()
        case "bool":
            return Bool()
        case _:
            scope.unknown(codes.UNKNOWN_NAME, written.name, _TYPE_NAMES, text="not a parameter type")
            return None
