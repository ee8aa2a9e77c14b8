"""A figure: a number that views print, with one name and one format in all of them."""

from __future__ import annotations

from enum import StrEnum

from planc.record import record
from planc.tables import format_bytes, format_number, format_seconds, plural


class Unit(StrEnum):
    """Units of figures; the value is printed after the number."""

    BYTES = "B"
    COLLECTIVES = "collective"
    DEVICE_TFLOPS = "TFLOP/s/device"
    DEVICE_TOKENS = "tokens/s/device"
    FLOP = "FLOP"
    MICRO_STEPS = "micro step"
    MODULES = "module"
    PARAMETERS = "parameter"
    PHASE = ""
    RANKS = "rank"
    SECONDS = "s"
    SHARE = "%"
    STEPS = "step"
    TOKENS = "token"
    TOKENS_PER_SECOND = "tokens/s"
    UNITS = "FSDP unit"


_COUNTS = (
    *(Unit.COLLECTIVES, Unit.MICRO_STEPS, Unit.MODULES, Unit.PARAMETERS, Unit.RANKS, Unit.STEPS),
    *(Unit.TOKENS, Unit.UNITS),
)


@record
class Figure:
    """A number of a plan or of a run. Its name is the key in JSON, and what `expect` calls it.

    The value is bytes, a count or a rate, or the name of a part of a step.
    """

    name: str
    value: int | float | str
    unit: Unit

    @property
    def count(self) -> int:
        """The value of a figure that counts things."""
        assert isinstance(self.value, int), f"{self.name} is not a whole number"
        return self.value

    @property
    def text(self) -> str:
        """The value with its unit: `30 modules`, `31.79 MiB`."""
        return self.written(with_unit=True)

    @property
    def number(self) -> str:
        """Without its unit, for places that name it; bytes, seconds and shares always have their unit."""
        return self.written(with_unit=False)

    @property
    def exact(self) -> str:
        """The value in full precision, for differences that rounding would hide."""
        return f"{format_number(self.count)} {self.unit}"

    def written(self, *, with_unit: bool) -> str:
        """The only place where a figure becomes text."""
        value = self.value
        if isinstance(value, str):
            return value
        if self.unit is Unit.BYTES:
            return format_bytes(round(value))
        if self.unit is Unit.SECONDS:
            return format_seconds(value)
        if self.unit is Unit.SHARE:
            return f"{100 * value:.1f} %"
        if self.unit in _COUNTS:
            return plural(round(value), self.unit) if with_unit else format_number(round(value))
        text = f"{value:.4g}" if self.unit is Unit.FLOP else _rate(value)
        return f"{text} {self.unit}" if with_unit else text


def _rate(value: float) -> str:
    """A whole number, or three digits of a small one."""
    return format_number(round(value)) if value >= 100 else f"{value:.3g}"


def num_bytes(name: str, value: int) -> Figure:
    """A size in bytes."""
    return Figure(name, value, Unit.BYTES)
