"""Types of single values: each converts what is written, describes itself and renders a value back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any, Protocol, assert_never

from planc.diagnostics import Applicability, Fix, Label
from planc.diagnostics.suggest import closest
from planc.plan import codes
from planc.plan.epochs import EPOCH_HELP, EPOCHS
from planc.plan.quantities import BYTES, SECONDS, exact
from planc.plan.scope import Scope
from planc.plan.spellings import bool_word, dtype_word, is_number, policy_bool
from planc.record import record
from planc.syntax import ast
from planc.syntax.write import number

MAX_INTEGER = 2**63 - 1


class ValueType(Protocol):
    """Accepts written values of one kind."""

    def convert(self, value: ast.Value, scope: Scope) -> Any:
        """The value, or None after reporting why not."""

    def describe(self, *, mark: str = "") -> str:
        """`an integer from 1 up`, for messages and pages; `mark` surrounds words to write."""

    def render(self, value: Any) -> str:
        """The text that converts to `value`."""


def wrong_type(
    wanted: ValueType,
    value: ast.Value,
    scope: Scope,
    labels: tuple[Label, ...],
    *,
    help: str | None = None,
    fix: Fix | None = None,
) -> None:
    """Reports a value of another type; a bare word is most often a mistyped parameter."""
    if help is None and isinstance(value, ast.Ref):
        near = closest(value.name.text, scope.visible(value))
        help = f"did you mean `{near}`?" if near else None
    text = f"expected {wanted.describe(mark='`')}, found {found(value)}"
    scope.report(codes.WRONG_TYPE, value.span, text, secondary=labels, help=help, fix=fix)


def _report_number(
    wanted: Int | Float,
    value: ast.Value,
    scope: Scope,
    labels: tuple[Label, ...],
    *,
    hint: str | None = None,
) -> None:
    """Reports a wrong type of value, with a fix for a number in quotes."""
    if not isinstance(value, ast.Text) or not is_number(value.value):
        wrong_type(wanted, value, scope, labels, help=hint)
        return
    fix = None if labels else Fix(value.span, value.value, Applicability.SAFE)
    wrong_type(wanted, value, scope, labels, help=f"write `{value.value}` without quotes", fix=fix)


@record
class Int:
    low: int | None = None
    high: int | None = None
    instead: str | None = None
    """The help for a number below the range."""

    def convert(self, value: ast.Value, scope: Scope) -> int | None:
        value, labels = scope.lookup(value)
        if not isinstance(value, ast.Number) or isinstance(value.value, float):
            _report_number(self, value, scope, labels, hint=self._hint(value))
            return None
        if _has_unit(value, scope, labels) or not _in_range(self, value, scope, labels):
            return None
        return value.value

    def describe(self, *, mark: str = "") -> str:
        return f"an integer{_range(self.low, self.high)}"

    def render(self, value: int) -> str:
        return f"{value:_}" if abs(value) >= 10_000 else str(value)

    def _hint(self, value: ast.Value) -> str | None:
        """Return the help for a whole number in another form; None for other values."""
        match value:
            case ast.Number() if full := _in_full(value):
                return f"write {full}"
            case ast.Number(float(number)) if number.is_integer() and abs(number) <= MAX_INTEGER:
                return f"write `{Int().render(int(number))}`"
            case _:
                return None


@record
class Float:
    low: float | None = None
    high: float | None = None

    def convert(self, value: ast.Value, scope: Scope) -> float | None:
        value, labels = scope.lookup(value)
        if not isinstance(value, ast.Number):
            _report_number(self, value, scope, labels)
            return None
        value = _without_percent(value) if self.high == 1 else value
        if _has_unit(value, scope, labels) or not _in_range(self, value, scope, labels):
            return None
        return float(value.value)

    def describe(self, *, mark: str = "") -> str:
        return f"a number{_range(self.low, self.high)}"

    def render(self, value: float) -> str:
        return number(value)


@record
class Text:
    def convert(self, value: ast.Value, scope: Scope) -> str | None:
        value, labels = scope.lookup(value)
        if not isinstance(value, ast.Text):
            help = f'write `"{value.name.text}"`, in quotes' if isinstance(value, ast.Ref) else None
            wrong_type(self, value, scope, labels, help=help)
            return None
        if not value.value.strip():
            scope.report(codes.OUT_OF_RANGE, value.span, "an empty string", secondary=labels)
            return None
        return value.value

    def describe(self, *, mark: str = "") -> str:
        return "a string"

    def render(self, value: str) -> str:
        return f'"{value}"'


@record
class Path:
    """The path of a file or a directory, or a glob, relative to the file that writes it."""

    def convert(self, value: ast.Value, scope: Scope) -> str | None:
        if Text().convert(value, scope) is None:
            return None
        written, _ = scope.lookup(value)
        assert isinstance(written, ast.Text), "else it would not have converted"
        return scope.path(written)

    def describe(self, *, mark: str = "") -> str:
        return "a path in quotes"

    def render(self, value: str) -> str:
        return f'"{value}"'


@record
class Bool:
    def convert(self, value: ast.Value, scope: Scope) -> bool | None:
        value, labels = scope.lookup(value)
        if not isinstance(value, ast.Bool):
            word = bool_word(_word(value) or "")
            policy = policy_bool(value.name.text) if isinstance(value, ast.Call) else None
            help = f"write `{word or policy}`" if word or policy else None
            fix = Fix(value.span, word, Applicability.SAFE) if word else None
            wrong_type(self, value, scope, labels, help=help, fix=fix)
            return None
        return value.value

    def describe(self, *, mark: str = "") -> str:
        return f"{mark}true{mark} or {mark}false{mark}"

    def render(self, value: bool) -> str:
        return "true" if value else "false"


@record
class Choice:
    """A bare word from a closed set, no parameter; `renamed` are former words, with those to write now."""

    choices: type[StrEnum]
    renamed: Mapping[str, str] | None = None

    def convert(self, value: ast.Value, scope: Scope) -> StrEnum | None:
        names = tuple(self.choices)
        if isinstance(value, ast.Ref):
            if value.name.text in names:
                return self.choices(value.name.text)
            self._unknown(value, names, scope)
        elif isinstance(value, ast.Text) and value.value in names:
            fix = Fix(value.span, value.value, Applicability.SAFE)
            wrong_type(self, value, scope, (), help=f"write `{value.value}` without quotes", fix=fix)
        elif isinstance(value, ast.Text) and (meant := dtype_word(value.value, known=names)):
            fix = Fix(value.span, meant, Applicability.SAFE)
            wrong_type(self, value, scope, (), help=f"write `{meant}` without quotes", fix=fix)
        else:
            wrong_type(self, value, scope, ())
        return None

    def _unknown(self, value: ast.Ref, names: tuple[StrEnum, ...], scope: Scope) -> None:
        """Report a word that is not a choice: another language's word, or a slip."""
        word, text = value.name.text, f"expected {self.describe(mark='`')}"
        if value.param_name in scope.params:
            text = f"`{word}` is a parameter: {text}"
            help = "write one of the words: a parameter can't replace it"
            scope.unknown(codes.UNKNOWN_NAME, value.name, names, text=text, help=help)
        elif meant := (self.renamed or {}).get(word) or dtype_word(word, known=names):
            fix = Fix(value.span, meant, Applicability.SAFE)
            scope.report(codes.UNKNOWN_NAME, value.span, text, help=f"write `{meant}`", fix=fix)
        else:
            scope.unknown(codes.UNKNOWN_NAME, value.name, names, text=text)

    def describe(self, *, mark: str = "") -> str:
        return listed(f"{mark}{choice}{mark}" for choice in self.choices)

    def render(self, value: StrEnum) -> str:
        return str(value)


@record
class Quantity:
    """A number with a unit; the value is an integer in the first unit."""

    units: Mapping[str, int]
    low: int = 0

    def convert(self, value: ast.Value, scope: Scope) -> int | None:
        value, labels = scope.lookup(value)
        if not isinstance(value, ast.Number):
            wrong_type(self, value, scope, labels)
            return None
        if value.unit is None:
            help = self._with_unit(value)
            scope.report(codes.WRONG_UNIT, value.span, "missing unit", secondary=labels, help=help)
            return None
        if value.unit.text not in self.units:
            text = f"expected {self.describe(mark='`')}"
            epoch = EPOCH_HELP if value.unit.text.lower() in EPOCHS and "steps" in self.units else None
            scope.unknown(codes.WRONG_UNIT, value.unit, self._names(), text=text, help=epoch)
            return None
        amount = self._amount(value, value.unit.text)
        if amount is None:
            text = f"expected a whole number of {next(iter(self.units))} from {self.low} up"
            scope.report(codes.OUT_OF_RANGE, value.span, text, secondary=labels)
        return amount

    def describe(self, *, mark: str = "") -> str:
        return f"a number of {listed(f'{mark}{name}{mark}' for name in self._names())}"

    def render(self, value: int) -> str:
        unit = max((u for u in self.units if value % self.units[u] == 0), key=lambda u: self.units[u])
        return f"{value // self.units[unit]:_} {unit}"

    def _amount(self, value: ast.Number, unit: str) -> int | None:
        """A number of units in the first unit; None for a part of one, or out of range."""
        written = exact(value)
        amount = written * self.units[unit] if written is not None else None
        if amount is None or amount.denominator != 1 or not self.low <= amount <= MAX_INTEGER:
            return None
        return int(amount)

    def _with_unit(self, value: ast.Number) -> str:
        """Return the help for a number without a unit: each unit that fits."""
        fitting = [unit for unit in self._names() if self._amount(value, unit) is not None]
        if fitting:
            return f"write {' or '.join(f'`{value.text} {unit}`' for unit in fitting)}"
        unit = self._names()[0]
        return f"write a whole number of {unit}, such as `{max(100, self.low)} {unit}`"

    def _names(self) -> tuple[str, ...]:
        """The units, each size once: `step` is the singular of `steps`."""
        return tuple(unit for unit, size in self.units.items() if unit == self._first(size))

    def _first(self, size: int) -> str:
        return next(unit for unit, other in self.units.items() if other == size)


_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4}
"""Letters that other tools write after a number, with the power of 1024 or 1000 that they mean."""


def listed(names: Iterable[str], *, last: str = "or") -> str:
    """`a, b or c`."""
    words = [str(name) for name in names]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def found(value: ast.Value) -> str:
    """Describe a written value, for messages."""
    match value:
        case ast.Number():
            return f"`{value.text} {value.unit.text}`" if value.unit else f"`{value.text}`"
        case ast.Text():
            return "a string"
        case ast.Bool():
            return "a bool"
        case ast.Ref(name):
            return f"`{name.text}`"
        case ast.Call(name):
            return f"the call `{name.text}(...)`"
        case ast.Items():
            return "a list"
        case ast.Arithmetic():
            return "arithmetic"
        case _:
            assert_never(value)


def _word(value: ast.Value) -> str | None:
    """A word as it is written, in quotes or not."""
    match value:
        case ast.Ref(name):
            return name.text
        case ast.Text(text):
            return text
        case _:
            return None


def _in_full(value: ast.Number) -> str | None:
    """`4096` or `4000` for `4k`: what such a letter mostly means, each as a plan writes it."""
    letter = value.unit.text.upper() if value.unit else ""
    factors = (2 ** (10 * _POWERS[letter]), 10 ** (3 * _POWERS[letter])) if letter in _POWERS else ()
    amounts = [(exact(value) or 0) * factor for factor in factors]
    counts = [int(amount) for amount in amounts if 0 < amount <= MAX_INTEGER and amount.denominator == 1]
    return " or ".join(f"`{Int().render(count)}`" for count in counts) or None


def _has_unit(value: ast.Number, scope: Scope, labels: tuple[Label, ...]) -> bool:
    if value.unit is None:
        return False
    text = f"unexpected unit `{value.unit.text}`: this value is a plain number"
    scope.report(codes.WRONG_UNIT, value.unit.span, text, secondary=labels, help=_without_unit(value))
    return True


def _without_percent(value: ast.Number) -> ast.Number:
    """Return a share without its unit: 0.1 for 10 %."""
    if value.unit is None or value.unit.text != "%" or (amount := exact(value)) is None:
        return value
    return replace(value, value=float(amount / 100), unit=None)


def _without_unit(value: ast.Number) -> str:
    """Return the help for a plain number with a unit."""
    unit = value.unit.text if value.unit else ""
    if unit.lower() in EPOCHS:
        return EPOCH_HELP
    if unit in SECONDS or unit in BYTES:
        return "write a number without a unit: this value is neither a time nor a size in bytes"
    return f"write {_in_full(value) or f'`{value.text}`'}"


def _in_range(wanted: Int | Float, value: ast.Number, scope: Scope, labels: tuple[Label, ...]) -> bool:
    low_ok = wanted.low is None or value.value >= wanted.low
    high_ok = wanted.high is None or value.value <= wanted.high
    is_held = abs(value.value) <= MAX_INTEGER if isinstance(value.value, int) else math.isfinite(value.value)
    if low_ok and high_ok and is_held:
        return True
    has_range = is_held or (wanted.high is not None and not high_ok)
    text = f"expected {wanted.describe()}" if has_range else "the number is too large to store"
    help = wanted.instead if isinstance(wanted, Int) and not low_ok else None
    scope.report(codes.OUT_OF_RANGE, value.span, text, secondary=labels, help=help)
    return False


def _range(low: float | None, high: float | None) -> str:
    first, last = (str(bound).removesuffix(".0") for bound in (low, high))
    if low is None:
        return "" if high is None else f" up to {last}"
    return f" from {first} up" if high is None else f" from {first} to {last}"
