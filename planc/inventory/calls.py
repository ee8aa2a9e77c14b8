"""The calls of a module in one forward. No torch here."""

from __future__ import annotations

from planc.inventory.value_types import Size
from planc.record import record


@record
class Calls:
    """The calls of a module in one forward: with gradients, and those that its code makes without."""

    with_gradients: Size = 1
    without: int = 0

    @property
    def number(self) -> int:
        return self.with_gradients + self.without


ONCE = Calls()
