"""The calls of a module in one forward. No torch here."""

from __future__ import annotations

from planc.inventory.value_types import Size
from planc.record import record


@record
class Calls:
    """How often a forward calls a module, and how often more the model's code does so without gradients."""

    with_gradients: Size = 1
    without: int = 0

    @property
    def number(self) -> int:
        return self.with_gradients + self.without


ONCE = Calls()
