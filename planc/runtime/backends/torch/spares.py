"""Ranks that an elastic run has no place for, while its mesh is smaller than the launch."""

from __future__ import annotations

import time

from torch.distributed import DistError, Store  # type: ignore[attr-defined]

from planc.runtime.backends.torch.mesh import meet
from planc.runtime.errors import RunError
from planc.runtime.launch import Launch

_DONE = "spares/done"
_LOOK_SECONDS = 1.0


def stand_by(launch: Launch) -> None:
    """Returns when the run that this rank takes no part in has ended, or cannot be reached.

    A spare that left earlier would let its node leave the launch, and could not come in for a lost one.
    """
    try:
        store = meet(launch)
        while not store.check([_DONE]):
            time.sleep(_LOOK_SECONDS)
    except (RunError, RuntimeError, DistError):
        # The run's own ranks say what ended it.
        return


def dismiss(store: Store) -> None:
    """Lets the spares go: the run is done."""
    store.set(_DONE, "")
