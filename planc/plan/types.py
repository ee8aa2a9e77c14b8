"""The types a setting can have: each accepts a written value, describes itself, and renders a value back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import StrEnum
from typing import Any, Protocol

from planc import vocab
from planc.diagnostics import Label
from planc.plan import codes
from planc.plan.scope import Scope
from planc.syntax import ast


class ValueType(Protocol):
    """Accepts written values of one kind."""

    def convert(self, value: ast.Value, scope: Scope) -> Any:
        """The value, or None after reporting why not."""

    def describe(self) -> str:
        """`an integer from 1 up`, for messages and pages."""

    def render(self, value: Any) -> str:
        """The text that converts to `value`."""


def key(type: ValueType, *, default: Any = MISSING, doc: str, positional: bool = False) -> Any:
    """A field of a block or of a call: how it is written, its default, one line of documentation."""
    return field(metadata={"type": type, "default": default, "doc": doc, "positional": positional})


def type_of(spec_field: Field[Any]) -> ValueType:
    found: ValueType = spec_field.metadata["type"]
    return found


def keys(record: type[Any]) -> tuple[Field[Any], ...]:
    """The fields of a spec that a plan can write."""
    return tuple(spec_field for spec_field in fields(record) if "type" in spec_field.metadata)


def wrong_type(wanted: ValueType, value: ast.Value, scope: Scope, labels: tuple[Label, ...]) -> None:
    """Reports that a value is of another type."""
    scope.report(codes.WRONG_TYPE, value.span, f"expected {wanted.describe()}", secondary=labels)


@dataclass(frozen=True, slots=True)
class Int:
    low: int | None = None
    high: int | None = None

    def convert(self, value: ast.Value, scope: Scope) -> int | None:
        value, labels = scope.lookup(value)
        if not isinstance(value, ast.Number) or isinstance(value.value, float):
            wrong_type(self, value, scope, labels)
            return None
        if value.unit is not None:
            scope.report(codes.WRONG_UNIT, value.unit.span, "this value has no unit", secondary=labels)
            return None
        return value.value if _in_range(self, value, scope, labels) else None

    def describe(self) -> str:
        return f"an integer{_range(self.low, self.high)}"

    def render(self, value: int) -> str:
        return f"{value:_}" if abs(value) >= 10_000 else str(value)


@dataclass(frozen=True, slots=True)
class Float:
    low: float | None = None
    high: float | None = None

    def convert(self, value: ast.Value, scope: Scope) -> float | None:
        value, labels = scope.lookup(value)
        if not isinstance(value, ast.Number):
            wrong_type(self, value, scope, labels)
            return None
        if value.unit is not None:
            scope.report(codes.WRONG_UNIT, value.unit.span, "this value has no unit", secondary=labels)
            return None
        return float(value.value) if _in_range(self, value, scope, labels) else None

    def describe(self) -> str:
        return f"a number{_range(self.low, self.high)}"

    def render(self, value: float) -> str:
        return repr(value)


@dataclass(frozen=True, slots=True)
class Text:
    def convert(self, value: ast.Value, scope: Scope) -> str | None:
        value, labels = scope.lookup(value)
        if not isinstance(value, ast.Text):
            wrong_type(self, value, scope, labels)
            return None
        if not value.value:
            scope.report(codes.OUT_OF_RANGE, value.span, "this string is empty", secondary=labels)
            return None
        return value.value

    def describe(self) -> str:
        return "a string"

    def render(self, value: str) -> str:
        return f'"{value}"'


@dataclass(frozen=True, slots=True)
class Bool:
    def convert(self, value: ast.Value, scope: Scope) -> bool | None:
        value, labels = scope.lookup(value)
        if isinstance(value, ast.Bool):
            return value.value
        wrong_type(self, value, scope, labels)
        return None

    def describe(self) -> str:
        return "true or false"

    def render(self, value: bool) -> str:
        return "true" if value else "false"


@dataclass(frozen=True, slots=True)
class Choice:
    """A bare word out of a closed set."""

    choices: type[StrEnum]

    def convert(self, value: ast.Value, scope: Scope) -> StrEnum | None:
        value, labels = scope.lookup(value)
        if not isinstance(value, ast.Ref):
            wrong_type(self, value, scope, labels)
            return None
        names = tuple(self.choices)
        if value.name.text not in names:
            scope.unknown(codes.UNKNOWN_NAME, value.name, names, text=f"not {self.describe()}")
            return None
        return self.choices(value.name.text)

    def describe(self) -> str:
        return " or ".join(self.choices)

    def render(self, value: StrEnum) -> str:
        return str(value)


@dataclass(frozen=True, slots=True)
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
            text = f"write the unit: {value.text} {next(iter(self.units))}"
            scope.report(codes.WRONG_UNIT, value.span, text, secondary=labels)
            return None
        if value.unit.text not in self.units:
            scope.unknown(codes.WRONG_UNIT, value.unit, tuple(self.units), text=f"expected {self.describe()}")
            return None
        amount = value.value * self.units[value.unit.text]
        if amount != int(amount) or amount < self.low:
            text = f"expected a whole number of {next(iter(self.units))} from {self.low} up"
            scope.report(codes.OUT_OF_RANGE, value.span, text, secondary=labels)
            return None
        return int(amount)

    def describe(self) -> str:
        return f"a number of {', '.join(self.units)}"

    def render(self, value: int) -> str:
        unit = max((u for u in self.units if value % self.units[u] == 0), key=lambda u: self.units[u])
        return f"{value // self.units[unit]:_} {unit}"


STEPS = {"steps": 1, "step": 1}
SECONDS = {"s": 1, "min": 60, "h": 3600}
BYTES = {
    **{"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12},
    **{"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40},
}


@dataclass(frozen=True, slots=True)
class Optional:
    """A value or the word `none`."""

    inner: ValueType

    def convert(self, value: ast.Value, scope: Scope) -> Any:
        found, _ = scope.lookup(value)
        if isinstance(found, ast.Ref) and found.name.text == "none":
            return NONE
        return self.inner.convert(value, scope)

    def describe(self) -> str:
        return f"{self.inner.describe()}, or none"

    def render(self, value: Any) -> str:
        return "none" if value is None else self.inner.render(value)


class _None:
    """What `Optional` returns for `none`, since None says that a finding was reported."""


NONE = _None()


@dataclass(frozen=True, slots=True)
class List:
    of: ValueType
    length: int | None = None

    def convert(self, value: ast.Value, scope: Scope) -> tuple[Any, ...] | None:
        value, labels = scope.lookup(value)
        if not isinstance(value, ast.Items) or self.length not in (None, len(value.values)):
            wrong_type(self, value, scope, labels)
            return None
        converted = tuple(self.of.convert(item, scope) for item in value.values)
        return None if None in converted else converted

    def describe(self) -> str:
        number = f"{self.length} " if self.length else ""
        return f"a list of {number}[{self.of.describe()}]"

    def render(self, value: tuple[Any, ...]) -> str:
        return f"[{', '.join(self.of.render(item) for item in value)}]"


@dataclass(frozen=True, slots=True)
class Variant:
    """One of several records, written as a call: `cosine(warmup = 10 steps)`, or bare when nothing is given."""

    cases: Mapping[str, type[Any]]

    def convert(self, value: ast.Value, scope: Scope) -> Any:
        value, labels = scope.lookup(value)
        match value:
            case ast.Ref(name):
                arguments: tuple[ast.Argument, ...] = ()
            case ast.Call(name, arguments, _):
                pass
            case _:
                wrong_type(self, value, scope, labels)
                return None
        if name.text not in self.cases:
            text = f"`{name.text}` is not known here"
            scope.unknown(codes.UNKNOWN_ACTION, name, tuple(self.cases), text=text)
            return None
        return convert_arguments(self.cases[name.text], name, arguments, scope)

    def describe(self) -> str:
        return " or ".join(self.cases)

    def render(self, value: Any) -> str:
        name = next(name for name, case in self.cases.items() if case is type(value))
        return render_call(name, value)


@dataclass(frozen=True, slots=True)
class Rest:
    """All positional arguments of a call: `text("a/*.txt", "b/*.txt")`."""

    of: ValueType

    def convert(self, value: ast.Value, scope: Scope) -> tuple[Any, ...] | None:
        assert isinstance(value, ast.Items)
        converted = tuple(self.of.convert(item, scope) for item in value.values)
        return None if None in converted else converted

    def describe(self) -> str:
        return f"{self.of.describe()}, any number of times"

    def render(self, value: tuple[Any, ...]) -> str:
        return ", ".join(self.of.render(item) for item in value)


@dataclass(frozen=True, slots=True)
class Placement:
    """`Shard(1)`, `Replicate()`; `Partial()` is an intermediate that a plan does not ask for."""

    def convert(self, value: ast.Value, scope: Scope) -> vocab.Placement | None:
        found: vocab.Placement | None = Variant(PLACEMENT_CASES).convert(value, scope)
        return vocab.Shard(found.tensor_dim) if isinstance(found, ShardWritten) else found

    def describe(self) -> str:
        return "Shard(tensor_dim) or Replicate()"

    def render(self, value: vocab.Placement) -> str:
        return str(value)


def convert_arguments(
    record: type[Any], name: ast.Name, arguments: tuple[ast.Argument, ...], scope: Scope
) -> Any:
    """An instance of `record` from a call's arguments, or None after reporting."""
    known = {spec_field.name: spec_field for spec_field in keys(record)}
    given = _assign(known, name, arguments, scope)
    if given is None:
        return None
    converted: dict[str, Any] = {}
    for spec_field in known.values():
        if spec_field.name in given:
            value = type_of(spec_field).convert(given[spec_field.name], scope)
            if value is None:
                return None
            converted[spec_field.name] = None if value is NONE else value
        elif spec_field.metadata["default"] is MISSING:
            scope.report(codes.WRONG_ARGUMENTS, name.span, f"`{spec_field.name}` is required")
            return None
        else:
            converted[spec_field.name] = spec_field.metadata["default"]
    return record(**converted)


def _assign(
    known: Mapping[str, Field[Any]], name: ast.Name, arguments: tuple[ast.Argument, ...], scope: Scope
) -> dict[str, ast.Value] | None:
    """Arguments by field name; positional ones go to the positional field."""
    positional = next((f for f in known.values() if f.metadata["positional"]), None)
    loose = [argument for argument in arguments if argument.name is None]
    given: dict[str, ast.Value] = {}
    if positional and isinstance(type_of(positional), Rest):
        given[positional.name] = ast.Items(tuple(argument.value for argument in loose), name.span)
        loose = []
    elif positional and loose:
        given[positional.name] = loose.pop(0).value
    for argument in loose:
        scope.report(codes.WRONG_ARGUMENTS, argument.span, f"`{name.text}` takes this argument by name")
        return None
    for argument in arguments:
        if argument.name is None:
            continue
        if argument.name.text not in known:
            text = f"`{name.text}` has no such argument" if known else f"`{name.text}` takes no arguments"
            scope.unknown(codes.WRONG_ARGUMENTS, argument.name, tuple(known), text=text)
            return None
        if argument.name.text in given:
            scope.report(codes.DUPLICATE, argument.span, "this argument is given twice")
            return None
        given[argument.name.text] = argument.value
    return given


def render_call(name: str, record: Any) -> str:
    """`cosine(warmup = 10 steps, min_factor = 0.1)`, every argument written out."""
    texts = []
    for spec_field in keys(type(record)):
        text = type_of(spec_field).render(getattr(record, spec_field.name))
        texts.append(text if spec_field.metadata["positional"] else f"{spec_field.name} = {text}")
    return f"{name}({', '.join(texts)})"


@dataclass(frozen=True, slots=True)
class ShardWritten:
    tensor_dim: int = key(Int(-8, 7), doc="the tensor dimension that is divided", positional=True)


PLACEMENT_CASES: Mapping[str, type[Any]] = {"Shard": ShardWritten, "Replicate": vocab.Replicate}


def _range(low: float | None, high: float | None) -> str:
    match low, high:
        case None, None:
            return ""
        case _, None:
            return f" from {low} up"
        case None, _:
            return f" up to {high}"
        case _:
            return f" from {low} to {high}"


def _in_range(wanted: Int | Float, value: ast.Number, scope: Scope, labels: tuple[Label, ...]) -> bool:
    low_ok = wanted.low is None or value.value >= wanted.low
    high_ok = wanted.high is None or value.value <= wanted.high
    if low_ok and high_ok and math.isfinite(value.value) and abs(value.value) < 2**63:
        return True
    scope.report(codes.OUT_OF_RANGE, value.span, f"expected {wanted.describe()}", secondary=labels)
    return False
