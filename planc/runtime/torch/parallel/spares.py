"""Ranks that an elastic run has no place for, while its mesh is smaller than the launch."""

from __future__ import annotations

import time

from torch.distributed import DistError, Store  # type: ignore[attr-defined]

from planc.runtime.errors import ExitCode, RunError
from planc.runtime.process import Launch
from planc.runtime.torch.parallel.mesh import meet

_DONE, _NUM_GONE = "spares/done", "spares/num_gone"
_LOOK_SECONDS = 1.0
_DISMISSED_SECONDS = 10.0


def stand_by(launch: Launch) -> ExitCode:
    """Waits until the run that this rank takes no part in is done, or cannot be reached, and says which.

    A spare that left earlier would let its node leave the launch, and could not come in for a lost one. So
    would one that left well when the run fails: its node would not meet the others for the next attempt.
    """
    try:
        store = meet(launch)
        while not store.check([_DONE]):
            time.sleep(_LOOK_SECONDS)
        store.add(_NUM_GONE, 1)
    except (RunError, RuntimeError, DistError):
        # The run's own ranks say what ended it.
        return ExitCode.COMMUNICATION
    return ExitCode.DONE


def dismiss(store: Store, *, num_spares: int) -> None:
    """Lets the spares go: the run is done. They are waited for, as the store may end with this process."""
    store.set(_DONE, "")
    last = time.monotonic() + _DISMISSED_SECONDS
    while store.add(_NUM_GONE, 0) < num_spares and time.monotonic() < last:
        time.sleep(_LOOK_SECONDS / 10)
