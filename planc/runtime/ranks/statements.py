"""Each rank's statement about a fault that all ranks know of, sent through the store to rank 0 only.

Not by a collective: after a fault, a rank that does not come must cost no more than its own statement.
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
    """The methods of `torch.distributed.Store` that are used here."""

    def set(self, key: str, value: str, /) -> None: ...

    def get(self, key: str, /) -> bytes: ...

    def wait(self, keys: list[str], timeout: timedelta, /) -> None: ...


@dataclass(frozen=True, slots=True)
class Statements:
    """Sends one rank's statements and, on rank 0, gathers those of all ranks."""

    store: Store
    rank: int
    world_size: int

    def gather(self, topic: str, own: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any]]]:
        """On rank 0, every rank's statement by rank, without those that come too late; elsewhere its own.

        Every rank must call it once per topic; only rank 0 waits.
        """
        if self.rank != 0:
            # A lost store must not hide the fault that this rank reports.
            with contextlib.suppress(RuntimeError):
                self.store.set(f"statement/{topic}/{self.rank}", json.dumps(own))
            return [(self.rank, own)]
        statements = [(0, own)]
        patience = _PATIENCE
        for rank in range(1, self.world_size):
            key = f"statement/{topic}/{rank}"
            try:
                self.store.wait([key], patience)
                statements.append((rank, json.loads(self.store.get(key))))
            except RuntimeError:  # torch's DistError is one
                patience = timedelta(milliseconds=1)
        return statements
