"""Types of exact numbers: weights and shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planc.plan import codes
from planc.plan.quantities import STEPS, exact
from planc.plan.scalars import Quantity, wrong_type
from planc.plan.scope import Scope
from planc.record import record
from planc.syntax import ast

if TYPE_CHECKING:
    from fractions import Fraction
PERCENT = "%"


@record
class Weight:
    """A positive number, kept exactly as it is written: 0.1 is one tenth."""

    def convert(self, value: ast.Value, scope: Scope) -> Fraction | None:
        value, labels = scope.lookup(value)
        if not isinstance(value, ast.Number) or value.unit is not None:
            wrong_type(self, value, scope, labels)
            return None
        amount = exact(value)
        if not amount or amount < 0:
            scope.report(codes.OUT_OF_RANGE, value.span, "expected a number above 0", secondary=labels)
            return None
        return as_fraction(amount)

    def describe(self, *, mark: str = "") -> str:
        return "a number above 0"

    def render(self, value: Fraction) -> str:
        return decimal(value)


@record
class Share:
    """A part of a whole, `3 %`, kept exactly as it is written."""

    def convert(self, value: ast.Value, scope: Scope) -> Fraction | None:
        value, labels = scope.lookup(value)
        if not isinstance(value, ast.Number):
            wrong_type(self, value, scope, labels)
            return None
        if value.unit is None or value.unit.text != PERCENT:
            help = f"write `{value.text} %`"
            scope.report(codes.WRONG_UNIT, value.span, "expected a share in `%`", secondary=labels, help=help)
            return None
        amount = exact(value)
        if amount is None or not 0 < amount < 100:
            text = "expected a share above 0 % and below 100 %"
            scope.report(codes.OUT_OF_RANGE, value.span, text, secondary=labels)
            return None
        return as_fraction(amount) / 100

    def describe(self, *, mark: str = "") -> str:
        return f"a share in {mark}%{mark}"

    def render(self, value: Fraction) -> str:
        return f"{decimal(value * 100)} %"


@record
class StepsOrShare:
    """A number of steps, or a share of all steps."""

    low: int = 0

    def convert(self, value: ast.Value, scope: Scope) -> int | Fraction | None:
        written, _ = scope.lookup(value)
        if isinstance(written, ast.Number) and written.unit is not None and written.unit.text == PERCENT:
            return Share().convert(value, scope)
        return Quantity(STEPS, low=self.low).convert(value, scope)

    def describe(self, *, mark: str = "") -> str:
        return f"{Quantity(STEPS).describe(mark=mark)}, or {Share().describe(mark=mark)} of all steps"

    def render(self, value: int | Fraction) -> str:
        return Quantity(STEPS).render(value) if isinstance(value, int) else Share().render(value)


def as_fraction(amount: int | Fraction) -> Fraction:
    # Few plans have shares, and others should not pay for the import.
    from fractions import Fraction

    return Fraction(amount)


def decimal(value: Fraction) -> str:
    """The decimal digits of a number that was written with them, all of them."""
    places = 0
    while (value * 10**places).denominator != 1:
        places += 1
    digits = str(int(value * 10**places)).rjust(places + 1, "0")
    return f"{digits[: len(digits) - places]}.{digits[len(digits) - places :]}" if places else digits
