"""Points where a run can stop: every rank passes them in the same order, and ranks agree on one of them.

A collective at each point would cost every run for the sake of the few that are stopped early. Here nothing
is sent until a rank receives a signal. Then a thread of every rank freezes its own rank: it publishes the
number of the first point at which its rank can still stop, and the rank waits there until all have published.
All ranks stop at the highest number: no rank has passed it, and none waits for another before it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from planc.runtime.errors import ExitCode, RunError
from planc.runtime.numerics import ranks_text
from planc.runtime.stopping.notice import Notice

_LOOK_SECONDS = 0.5
"""The longest delay until another rank learns of a request."""
_POLL_SECONDS = 0.02
LONG_STEP_SECONDS = 5.0
"""A step that takes longer than this is abandoned between two micro-batches; a shorter one is finished."""


class Store(Protocol):
    """The methods of `torch.distributed.Store` that are used here."""

    def set(self, key: str, value: str, /) -> None: ...

    def add(self, key: str, amount: int, /) -> int: ...

    def check(self, keys: list[str], /) -> bool: ...

    def multi_get(self, keys: list[str], /) -> list[bytes]: ...


@dataclass(frozen=True, slots=True)
class Stop:
    """The point where all ranks stop, and whether a step under way is abandoned there or finished first."""

    number: int
    abandons_step: bool


class StopPoints:
    """One rank's count of the points that it has passed. Without a store, this process is the only rank."""

    def __init__(
        self,
        notice: Notice,
        *,
        store: Store | None = None,
        rank: int = 0,
        world_size: int = 1,
        timeout_seconds: float = 60.0,
    ) -> None:
        self._notice, self._store = notice, store
        self._rank, self._world_size = rank, world_size
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._num_passed = 0
        self._frozen: int | None = None
        self._stop: Stop | None = None
        self._is_decided = threading.Event()
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._step_began = time.monotonic()
        self._step_seconds = 0.0

    def start(self, *, on_first_request: Callable[[str], None]) -> None:
        """Listen to the other ranks from now on. `on_first_request` runs on the first rank that is asked."""
        if self._store is not None:
            arguments = (self._store, on_first_request)
            self._thread = threading.Thread(
                target=self._listen, args=arguments, name="planc-stop", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Listen no longer. A thread in the store's code would abort a program that ends."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()

    def step_began(self) -> None:
        """A step begins: how long steps take decides whether one is abandoned."""
        now = time.monotonic()
        self._step_seconds, self._step_began = now - self._step_began, now

    def reached(self, *, in_step: bool = False) -> bool:
        """Whether the run stops at this point: the same on every rank. Every rank must call it.

        `in_step` is for a point between two micro-batches of a step.
        """
        if self._store is None:
            return bool(self._notice.signal_name) and (
                not in_step or self._longest_step() > LONG_STEP_SECONDS
            )
        with self._lock:
            number = self._num_passed + 1
            self._num_passed = number
            if self._frozen is None or number < self._frozen:
                return False
        stop = self._agreed(self._store)
        return number >= stop.number and (not in_step or stop.abandons_step)

    def _agreed(self, store: Store) -> Stop:
        """The point that all ranks agree on; RunError if some of them do not respond."""
        if not self._is_decided.wait(self._timeout_seconds):
            keys = [_key(rank) for rank in range(self._world_size)]
            missing = [rank for rank, key in enumerate(keys) if not store.check([key])]
            raise RunError(
                f"{ranks_text(missing)} did not respond to the request to stop "
                f"within {self._timeout_seconds:g} s",
                code=ExitCode.COMMUNICATION,
                is_shared=False,
            )
        assert self._stop is not None, "it is set before the event is"
        return self._stop

    def _listen(self, store: Store, on_first_request: Callable[[str], None]) -> None:
        # A lost store fails the main thread too, which reports why.
        with contextlib.suppress(RuntimeError):
            while not self._is_requested(store, on_first_request):
                if self._is_over.wait(_LOOK_SECONDS):
                    return
            self._notice.requested_at = time.monotonic()
            with self._lock:
                self._frozen = self._num_passed + 1
            store.set(_key(self._rank), f"{self._frozen} {self._longest_step():.3f}")
            keys = [_key(rank) for rank in range(self._world_size)]
            while not store.check(keys):
                if self._is_over.wait(_POLL_SECONDS):
                    return
            self._stop = _decide(store.multi_get(keys))
            self._is_decided.set()

    def _is_requested(self, store: Store, on_first_request: Callable[[str], None]) -> bool:
        if self._notice.signal_name:
            if store.add("stop/requested", 1) == 1:
                on_first_request(self._notice.signal_name)
            return True
        return store.check(["stop/requested"])

    def _longest_step(self) -> float:
        return max(self._step_seconds, time.monotonic() - self._step_began)


def _decide(answers: list[bytes]) -> Stop:
    """The same on every rank, because all read the same answers."""
    numbers, seconds = zip(*(answer.decode().split() for answer in answers), strict=True)
    return Stop(max(map(int, numbers)), max(map(float, seconds)) > LONG_STEP_SECONDS)


def _key(rank: int) -> str:
    return f"stop/{rank}"
