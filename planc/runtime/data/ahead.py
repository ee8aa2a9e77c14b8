"""Prefetching: items made ahead of time by one thread, in order."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

from planc.runtime.data.errors import DataError

Made = TypeVar("Made")


class Ahead(Generic[Made]):
    """Makes the items at `start`, `start + stride`, ... up to `depth` ahead of their use.

    The thread is a daemon and waits only for its next order, so it can't keep a process from ending; it ends
    with this object, to which `make` must not hold a reference. `take` raises the thread's error, or a
    DataError if an item takes longer than `patience_seconds`.
    """

    def __init__(
        self, make: Callable[[int], Made], *, depth: int, stride: int, patience_seconds: float | None = None
    ) -> None:
        assert depth > 0
        self._make, self._depth, self._stride = make, depth, stride
        self._patience_seconds = patience_seconds
        self._orders: SimpleQueue[_Order[Made] | None] = SimpleQueue()
        self._pending: list[_Order[Made]] = []
        self._thread: threading.Thread | None = None

    def take(self, start: int) -> Made:
        """The result of `make(start)`, made already if the item taken last was one stride before."""
        if self._thread is None:
            # Started when first needed: a run that only does its setup has no thread.
            self._thread = threading.Thread(
                target=_work, args=(self._orders, self._make), name="planc-prefetch", daemon=True
            )
            self._thread.start()
            weakref.finalize(self, self._orders.put, None)
        if not self._pending or self._pending[0].start != start:
            # Not the expected position, as after a resume: items made for the old one are dropped.
            self._pending = []
            self._order(start)
        order = self._pending.pop(0)
        following = start + self._stride
        while len(self._pending) < self._depth:
            self._order(following + len(self._pending) * self._stride)
        return order.result(patience_seconds=self._patience_seconds)

    def _order(self, start: int) -> None:
        order: _Order[Made] = _Order(start)
        self._pending.append(order)
        self._orders.put(order)


class _Order(Generic[Made]):
    """An item to make, and later the result."""

    def __init__(self, start: int) -> None:
        self.start = start
        self._is_done = threading.Event()
        self._made: list[Made] = []
        self._error: BaseException | None = None

    def carry_out(self, make: Callable[[int], Made]) -> None:
        try:
            self._made.append(make(self.start))
        except BaseException as error:  # of any kind: the waiting thread must raise it
            self._error = error
        finally:
            self._is_done.set()

    def result(self, *, patience_seconds: float | None) -> Made:
        if not self._is_done.wait(patience_seconds):
            text = f"the prefetch thread has produced no batch for {patience_seconds:g} s"
            raise DataError(text, help="check that the storage that holds the data still responds")
        if self._error is not None:
            raise self._error
        return self._made[0]


def _work(orders: SimpleQueue[_Order[Made] | None], make: Callable[[int], Made]) -> None:
    while (order := orders.get()) is not None:
        order.carry_out(make)
