"""The ranks that slow down the others: their own work takes clearly longer; they don't wait for others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Seconds = Sequence[float] | npt.NDArray[np.float64]

FACTOR = 1.5
"""Times the other ranks' median: a rank that takes longer for its own part of a step straggles."""
_LEAST_SECONDS = 0.02
"""Seconds above the median, as well: short steps differ by what else a machine does."""
_STEPS = 5
"""Steps that are judged together."""
_MAX_NAMED = 8


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank's own time for a step, and the median of the others', in seconds.

    `is_scaled`: the others have more or less of a pipeline to compute, and their time is scaled to its part.
    """

    rank: int
    seconds: float
    others_seconds: float
    is_scaled: bool = False

    def __str__(self) -> str:
        ratio = f"{self.seconds / self.others_seconds:.1f} times" if self.others_seconds else "more than"
        return (
            f"rank {self.rank} straggles: its own work takes {self.seconds:.3f} s per step, "
            f"{ratio} the others' median of {self.others_seconds:.3f} s"
            f"{', scaled to its stages' if self.is_scaled else ''}"
        )


@dataclass(slots=True)
class Stragglers:
    """Judges ranks by the times that they log; a rank is reported when it stands out twice in a row.

    `shares` are the parts of a step's work that ranks have; None if all have the same.
    """

    shares: Sequence[float] | None = None
    named: tuple[int, ...] = ()
    """The ranks that straggle now."""
    _suspects: frozenset[int] = frozenset()
    _sums: npt.NDArray[np.float64] | None = None
    _num_steps: int = 0

    def add(self, seconds: Seconds, *, num_steps: int) -> tuple[Straggler, ...]:
        """The ranks that straggle now but did not before. `seconds` are each rank's total."""
        self._sums = np.asarray(seconds, dtype=np.float64) + (0.0 if self._sums is None else self._sums)
        self._num_steps += num_steps
        if self._num_steps < _STEPS:
            return ()
        found = standing_out(self._sums / self._num_steps, shares=self.shares)
        self._sums, self._num_steps = None, 0
        slow = frozenset(one.rank for one in found)
        # Once may be chance; a reported rank stays reported until it keeps up again.
        confirmed = tuple(one for one in found if one.rank in self._suspects)
        new = tuple(one for one in confirmed if one.rank not in self.named)
        self.named = tuple(one.rank for one in confirmed)
        self._suspects = slow
        return new


def standing_out(seconds: Seconds, *, shares: Sequence[float] | None = None) -> tuple[Straggler, ...]:
    """The ranks whose seconds for their shares stand out from those of the others: at most eight, the
    slowest first."""
    own = np.asarray(seconds, dtype=np.float64)
    scale = np.ones_like(own) if shares is None else np.asarray(shares, dtype=np.float64)
    alike = own / scale
    unseen, stragglers = alike.copy(), list[Straggler]()
    for _ in range(min(_MAX_NAMED, len(own)) if len(own) > 1 else 0):
        rank = int(unseen.argmax())
        others = float(np.median(np.delete(alike, rank))) * float(scale[rank])
        if own[rank] <= FACTOR * others:
            # A faster rank has a slower one among the others: it stands out even less.
            break
        if own[rank] - others > _LEAST_SECONDS:
            stragglers.append(Straggler(rank, float(own[rank]), others, shares is not None))
        unseen[rank] = -np.inf
    return tuple(stragglers)
