"""The losses that a run keeps to detect a spike, and the test for one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

_NORMAL = 1.4826
"""The standard deviation of a normal distribution over the median distance from its median."""
_LEAST_SHARE = 0.01
"""Relative to the median: without it, after losses that hardly differ any ripple would be a spike."""


@dataclass(frozen=True, slots=True)
class Level:
    """The level of recent losses: their median, and their deviation from it."""

    median: float
    deviation: float

    def deviations(self, loss: float) -> float:
        """Return by how many deviations a loss is above the median."""
        return (loss - self.median) / self.deviation


def level(losses: Sequence[float]) -> Level:
    """The median, and 1.4826 times the median distance from it; at least a hundredth of it."""
    middle = median(losses)
    spread = _NORMAL * median(abs(loss - middle) for loss in losses)
    return Level(middle, max(spread, _LEAST_SHARE * abs(middle)))


@dataclass(frozen=True, slots=True)
class Memory:
    """The losses of the last steps that were taken, oldest first, and how many were skipped since."""

    losses: tuple[float, ...] = ()
    num_skipped: int = 0

    def spike(self, loss: float, *, deviations: float, window: int) -> Level | None:
        """The level that the loss exceeds; None if it does not, or if there are too few losses to tell."""
        found = self.level(window=window)
        return found if found and loss - found.median > deviations * found.deviation else None

    def level(self, *, window: int) -> Level | None:
        """The level of the last losses; None if there are too few."""
        return level(self.losses[-window:]) if len(self.losses) >= window else None

    def taken(self, loss: float, *, window: int) -> Memory:
        """After a step that was taken."""
        return Memory((*self.losses, loss)[-window:] if window else ())

    def skipped(self) -> Memory:
        """After a step that was skipped, whose loss does not predict the next one's."""
        return Memory(self.losses, self.num_skipped + 1)
