"""Spare ranks of an elastic run, while its mesh is smaller than the launch."""

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
    """Wait until the run, in which this rank takes no part, is done or unreachable; return which.

    If a spare left earlier, its node would leave the launch and could not replace a lost one. If it left with
    exit code 0 when the run fails, its node would not join the others for the next attempt.
    """
    try:
        store = meet(launch)
        while not store.check([_DONE]):
            time.sleep(_LOOK_SECONDS)
        store.add(_NUM_GONE, 1)
    except (RunError, RuntimeError, DistError):
        # The run's own ranks report what ended it.
        return ExitCode.COMMUNICATION
    return ExitCode.DONE


def dismiss(store: Store, *, num_spares: int) -> None:
    """Dismiss the spares after the run. Waits for them, because the store may end with this process."""
    store.set(_DONE, "")
    last = time.monotonic() + _DISMISSED_SECONDS
    while store.add(_NUM_GONE, 0) < num_spares and time.monotonic() < last:
        time.sleep(_LOOK_SECONDS / 10)
