"""Arithmetic in values: computed exactly, with units, before any type sees the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from planc.diagnostics import Code
from planc.plan import codes
from planc.plan.quantities import BYTES, SECONDS, STEPS, TOKENS, exact
from planc.record import record
from planc.source import Span
from planc.syntax import ast

if TYPE_CHECKING:
    from fractions import Fraction

_FAMILIES = (STEPS, SECONDS, BYTES, TOKENS)


@record
class Fault:
    """A place where arithmetic has no result, and why."""

    code: Code
    span: Span
    text: str
    help: str | None = None


class _Amount(NamedTuple):
    value: Fraction
    unit: str
    """Empty for a plain number."""


def evaluate(value: ast.Arithmetic, lookup: Callable[[ast.Ref], ast.Value]) -> ast.Number | Fault:
    """The number that arithmetic gives, as if the plan had it written; `lookup` has a parameter's value.

    Numbers of one unit, or of units of one kind, add up; a quantity is multiplied or divided by a number.
    """
    result = _amount(value, lookup)
    if isinstance(result, Fault):
        is_path = "/" in value.compact and len(value.compact) == value.span.end_column - value.span.column
        help = f'write a path in quotes: `"{value.compact}"`' if is_path else result.help
        return replace(result, help=help)
    unit = ast.Name(result.unit, value.span) if result.unit else None
    if result.value.denominator == 1:
        return ast.Number(int(result.value), unit, str(result.value), value.span)
    try:
        return ast.Number(float(result.value), unit, str(result.value), value.span)
    except OverflowError:
        return Fault(codes.OUT_OF_RANGE, value.span, "the result is too large to store")


def _amount(value: ast.Value, lookup: Callable[[ast.Ref], ast.Value]) -> _Amount | Fault:
    from fractions import Fraction  # most plans have no arithmetic and should not pay for this import

    span = value.span
    written = lookup(value) if isinstance(value, ast.Ref) else value
    if isinstance(written, ast.Arithmetic):
        result = _amount(written.operands[0], lookup)
        for operator, operand in zip(written.operators, written.operands[1:], strict=True):
            right = _amount(operand, lookup)
            if isinstance(result, Fault) or isinstance(right, Fault):
                return result if isinstance(result, Fault) else right
            result = _result(operator, result, right, span=operand.span)
        return result
    if not isinstance(written, ast.Number):
        name = value.name.text if isinstance(value, ast.Ref) else ""
        text = f"`{name}` is not a number" if name else "expected a number"
        is_unknown = name and written is value
        help = f"declare it: `param {name}: int = 1`" if is_unknown else "name a parameter that is a number"
        return Fault(codes.WRONG_TYPE, span, text, help)
    number = exact(written)
    if number is None:
        return Fault(codes.OUT_OF_RANGE, span, "the number is too large to store", "write a smaller number")
    unit = written.unit.text if written.unit else ""
    return _Amount(Fraction(number) / 100, "") if unit == "%" else _Amount(Fraction(number), unit)


def _result(operator: str, left: _Amount, right: _Amount, *, span: Span) -> _Amount | Fault:
    """The result of one operator; `span` is where its right operand is."""
    match operator:
        case "*" if not (left.unit and right.unit):
            return _Amount(left.value * right.value, left.unit or right.unit)
        case "/" if not right.value:
            return Fault(codes.OUT_OF_RANGE, span, "a division by zero", "divide by another number")
        case "/" if not right.unit:
            return _Amount(left.value / right.value, left.unit)
        case "*" | "/":
            text = f"`{right.unit}` can't be an operand of `{operator}` here"
            return Fault(codes.WRONG_UNIT, span, text, "multiply and divide by plain numbers")
    sign = 1 if operator == "+" else -1
    if left.unit == right.unit:
        return _Amount(left.value + sign * right.value, left.unit)
    family = next((units for units in _FAMILIES if left.unit in units and right.unit in units), None)
    if family is None:
        text = f"`{operator}` of {_kind(left.unit)} and {_kind(right.unit)}"
        return Fault(codes.WRONG_UNIT, span, text, "give both the same unit")
    smaller = min(left.unit, right.unit, key=lambda unit: family[unit])
    total = left.value * family[left.unit] + sign * right.value * family[right.unit]
    return _Amount(total / family[smaller], smaller)


def _kind(unit: str) -> str:
    return f"`{unit}`" if unit else "a plain number"
