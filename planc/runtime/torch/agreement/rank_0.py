"""Work of rank 0 alone before the run begins, and what all ranks then know of it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from torch.distributed import DistError, Store  # type: ignore[attr-defined]

from planc.runtime.errors import ExitCode, RunError
from planc.runtime.process import Launch

T = TypeVar("T")
PARTING_TIMEOUT = timedelta(seconds=5)


def by_rank_0(store: Store, launch: Launch, action: Callable[[], T]) -> T | None:
    """The result of `action` on rank 0, None on others; every rank raises the RunError of rank 0.

    Every rank must call it, once in a run.
    """
    if launch.rank == 0:
        try:
            result = action()
        except RunError as error:
            refusal = {"message": error.message, "help": error.help, "code": int(error.code)}
            store.set("rank_0/refusal", json.dumps(refusal))
            part(store, launch, key="rank_0/seen")
            raise
        store.set("rank_0/refusal", "")
        return result
    try:
        text = store.get("rank_0/refusal").decode()
    except (RuntimeError, DistError) as error:
        raise RunError(
            "rank 0 exited before the run began; its output shows why",
            code=ExitCode.COMMUNICATION,
            is_shared=False,
        ) from error
    if text:
        part(store, launch, key="rank_0/seen")
        found = json.loads(text)
        raise RunError(found["message"], help=found["help"], code=ExitCode(found["code"]))
    return None


def part(store: Store, launch: Launch, *, key: str) -> None:
    """Wait on rank 0 until every rank has come this far: the store ends with rank 0, if rank 0 hosts it."""
    # If the store is gone already, there is nothing to wait for.
    with contextlib.suppress(RuntimeError, DistError):
        store.set(f"{key}/{launch.rank}", "")
        if launch.rank == 0:
            store.wait([f"{key}/{rank}" for rank in range(launch.world_size)], PARTING_TIMEOUT)
