"""Which ranks slow down the others: those whose own work takes clearly longer, not those that wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

FACTOR = 1.5
"""Times the other ranks' median: a rank that takes longer for its own part of a step straggles."""
_LEAST_SECONDS = 0.02
"""Seconds above the median, as well: short steps differ by what else a machine does."""
_STEPS = 5
"""Steps that are judged together."""
_MAX_NAMED = 8


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank's own time for a step, and the median of the others', in seconds."""

    rank: int
    seconds: float
    others_seconds: float

    def __str__(self) -> str:
        ratio = f"{self.seconds / self.others_seconds:.1f} times" if self.others_seconds else "more than"
        return (
            f"rank {self.rank} straggles: its own work takes {self.seconds:.3f} s per step, "
            f"{ratio} the others' median of {self.others_seconds:.3f} s"
        )


@dataclass(slots=True)
class Stragglers:
    """Judges ranks by the times that they log; a rank is reported when it stands out twice in a row."""

    named: tuple[int, ...] = ()
    """The ranks that straggle now."""
    _suspects: frozenset[int] = frozenset()
    _sums: list[float] = field(default_factory=list)
    _num_steps: int = 0

    def add(self, seconds: Sequence[float], *, num_steps: int) -> tuple[Straggler, ...]:
        """The ranks that straggle now but did not before. `seconds` are each rank's total."""
        self._sums = [sum(pair) for pair in zip(self._sums or [0.0] * len(seconds), seconds, strict=True)]
        self._num_steps += num_steps
        if self._num_steps < _STEPS:
            return ()
        found = standing_out([total / self._num_steps for total in self._sums])
        self._sums, self._num_steps = [], 0
        slow = frozenset(one.rank for one in found)
        # Once may be chance; a reported rank stays reported until it keeps up again.
        confirmed = tuple(one for one in found if one.rank in self._suspects)
        new = tuple(one for one in confirmed if one.rank not in self.named)
        self.named = tuple(one.rank for one in confirmed)
        self._suspects = slow
        return new


def standing_out(seconds: Sequence[float]) -> tuple[Straggler, ...]:
    """The ranks whose seconds stand out from those of the others, at most eight, the slowest first."""
    slowest = sorted(range(len(seconds)), key=lambda rank: -seconds[rank])[:_MAX_NAMED]
    found = []
    for rank in slowest if len(seconds) > 1 else ():
        others = median([*seconds[:rank], *seconds[rank + 1 :]])
        if seconds[rank] > FACTOR * others and seconds[rank] - others > _LEAST_SECONDS:
            found.append(Straggler(rank, seconds[rank], others))
    return tuple(found)
