"""What a run remembers to judge a loss by, and the judgement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

_NORMAL = 1.4826
"""Of a normal distribution, the standard deviation over the median distance from the median."""
_LEAST_SHARE = 0.01
"""Of the median. Losses that hardly differ would make a spike of the next ripple."""


@dataclass(frozen=True, slots=True)
class Level:
    """What losses are like: their median, and how far from it they lie."""

    median: float
    deviation: float

    def deviations(self, loss: float) -> float:
        """How many deviations a loss lies above the median."""
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
        """What the loss stands out from; None if it does not, or if there are too few to tell."""
        if len(self.losses) < window:
            return None
        found = level(self.losses[-window:])
        return found if loss - found.median > deviations * found.deviation else None

    def taken(self, loss: float, *, window: int) -> Memory:
        """After a step that was taken."""
        return Memory((*self.losses, loss)[-window:] if window else ())

    def skipped(self) -> Memory:
        """After a step that was skipped, whose loss says nothing of the next one's."""
        return Memory(self.losses, self.num_skipped + 1)
