"""Places in a sequence at which documents start."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from planc.runtime.data.prepared.stored_array import StoredStarts

Positions = npt.NDArray[np.int64]


def starts_within(starts: Positions | StoredStarts, first: int, stop: int) -> Positions:
    """The document starts in [first, stop)."""
    if isinstance(starts, StoredStarts):
        return starts.within(first, stop)
    low, high = np.searchsorted(starts, (first, stop))
    return starts[low:high]


def restarting(starts: Positions, *, length: int) -> Positions:
    """[length]: positions that restart with each of `starts`, ascending places in a sequence."""
    places = np.arange(length, dtype=np.int64)
    first = np.zeros_like(places)
    first[starts] = starts
    return places - np.maximum.accumulate(first)
