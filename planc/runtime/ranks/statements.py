"""What ranks say of a fault that they all know of: told through the store, to rank 0 alone.

Not by a collective: it is a fault that brought them here, and a rank that does not come must cost no more
than its own statement.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

_PATIENCE = timedelta(seconds=10)


class Store(Protocol):
    """What this needs of a `torch.distributed.Store`."""

    def set(self, key: str, value: str, /) -> None: ...

    def get(self, key: str, /) -> bytes: ...

    def wait(self, keys: list[str], timeout: timedelta, /) -> None: ...


@dataclass(frozen=True, slots=True)
class Statements:
    """One rank's way to tell and, on rank 0, to hear."""

    store: Store
    rank: int
    world_size: int

    def heard(self, topic: str, own: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any]]]:
        """On rank 0, what every rank says, by rank, those left out that do not come in time; else its own.

        Every rank must call it, once a topic; none but rank 0 waits.
        """
        if self.rank != 0:
            # A store that is gone must not hide why this rank has something to say.
            with contextlib.suppress(RuntimeError):
                self.store.set(f"said/{topic}/{self.rank}", json.dumps(own))
            return [(self.rank, own)]
        found = [(0, own)]
        patience = _PATIENCE
        for rank in range(1, self.world_size):
            key = f"said/{topic}/{rank}"
            try:
                self.store.wait([key], patience)
                found.append((rank, json.loads(self.store.get(key))))
            except RuntimeError:  # torch's DistError is one
                patience = timedelta(milliseconds=1)
        return found
