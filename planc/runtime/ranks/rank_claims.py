"""Detect two processes with the same rank, which would wait forever for a missing one.

On one machine by a socket name that only one process can bind, before ranks connect; elsewhere by the store.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Protocol, Self

from planc.runtime.errors import ExitCode, RunError
from planc.runtime.process import Launch

_FIRST_POLL_SECONDS = 0.005
_LONGEST_POLL_SECONDS = 0.1
_KNOCK_SECONDS = 1.0
_TWICE = "rank/twice"
_HELP = "give every process its own RANK, from 0 to WORLD_SIZE - 1, as torchrun does"


class Store(Protocol):
    """The methods of `torch.distributed.Store` that are used here."""

    def set(self, key: str, value: str, /) -> None: ...

    def get(self, key: str, /) -> bytes: ...

    def add(self, key: str, amount: int, /) -> int: ...

    def check(self, keys: list[str], /) -> bool: ...


class Claim:
    """This process's claim to its rank on this machine, until closed. RunError if another process has it.

    The other process learns of it at its next `require_alone`. Only Linux has abstract socket names.
    """

    def __init__(self, launch: Launch) -> None:
        self._rank = launch.rank
        self._name = f"\0planc {launch.address} {launch.port} rank {launch.rank}"
        self._socket: socket.socket | None = None
        if launch.world_size == 1 or not sys.platform.startswith("linux"):
            return
        own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            own.bind(self._name)
            own.listen(8)
            own.setblocking(False)
        except OSError as error:
            own.close()
            if error.errno == errno.EADDRINUSE:
                self._knock()
                raise _twice(f"another process on {_host()} has RANK = {self._rank} too") from None
            return
        self._socket = own

    def require_alone(self) -> None:
        """RunError if a later process claims the same rank."""
        if self._socket is None:
            return
        with contextlib.suppress(BlockingIOError):
            self._socket.accept()[0].close()
            raise _twice(f"another process on {_host()} has RANK = {self._rank} too")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _knock(self) -> None:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            other.settimeout(_KNOCK_SECONDS)
            other.connect(self._name)


def require_free_port(launch: Launch) -> None:
    """RunError, naming a free port, if rank 0 can't listen on its port."""
    if launch.rank != 0 or launch.port is None or launch.agent_hosts_store:
        return
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", launch.port))
            return
        except OSError as error:
            reason = error.strerror
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    raise RunError(
        f"cannot listen on MASTER_PORT = {launch.port}: {reason}",
        code=ExitCode.COMMUNICATION,
        help=f"choose another port: {free} is free on this machine",
        is_shared=False,
    )


def await_host(launch: Launch, claim: Claim | None, *, patience: timedelta) -> None:
    """Wait until the store's port is open; RunError if nothing listens there in time."""
    assert launch.address is not None and launch.port is not None, "several ranks meet somewhere"
    deadline = time.monotonic() + patience.total_seconds()
    reason = ""
    polls = _polls()
    while True:
        if claim is not None:
            claim.require_alone()
        try:
            socket.create_connection((launch.address, launch.port), timeout=5.0).close()
            return
        except OSError as error:
            reason = error.strerror or str(error)
        if time.monotonic() >= deadline:
            who = "torchrun's agent on the first node" if launch.agent_hosts_store else "rank 0"
            raise RunError(
                f"rank {launch.rank} on {_host()}: nothing listens at {launch.address}:{launch.port} after "
                f"{patience.total_seconds():.0f} s ({reason}): {who} has not started there, or has exited",
                code=ExitCode.COMMUNICATION,
                help=f"check {who}'s output, MASTER_ADDR and MASTER_PORT, and that one process has RANK = 0",
                is_shared=False,
            )
        time.sleep(next(polls))


def register(store: Store, launch: Launch) -> None:
    """Register this rank in the store; RunError on every rank if it is registered already."""
    place = f"{_host()} (process {os.getpid()})"
    if store.add(f"rank/{launch.rank}", 1) == 1:
        store.set(f"rank/{launch.rank}/place", place)
        return
    first = store.get(f"rank/{launch.rank}/place").decode()
    store.set(_TWICE, f"two processes have RANK = {launch.rank}: one on {first}, one on {place}")
    require_once(store)


def require_once(store: Store) -> None:
    """RunError if any rank is registered twice."""
    if store.check([_TWICE]):
        raise _twice(store.get(_TWICE).decode())


def await_keys(store: Store, keys: list[str], *, patience: timedelta, claim: Claim | None = None) -> bool:
    """Whether all keys are set in time; RunError if a rank is registered twice."""
    deadline = time.monotonic() + patience.total_seconds()
    polls = _polls()
    while not store.check(keys):
        require_once(store)
        if claim is not None:
            claim.require_alone()
        if time.monotonic() >= deadline:
            return False
        time.sleep(next(polls))
    return True


def _polls() -> Iterator[float]:
    """The seconds to sleep between two looks: few at first, because most ranks start together."""
    seconds = _FIRST_POLL_SECONDS
    while True:
        yield seconds
        seconds = min(2 * seconds, _LONGEST_POLL_SECONDS)


def _twice(text: str) -> RunError:
    return RunError(text, code=ExitCode.COMMUNICATION, help=_HELP, is_shared=False)


def _host() -> str:
    return socket.gethostname()
