"""Two processes with one rank would wait for a third one for ever: each finds out that it is not alone.

On one machine by a name that only one process can have, before ranks meet anywhere; elsewhere by the store.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
import time
from datetime import timedelta
from typing import Protocol, Self

from planc.runtime.errors import ExitCode, RunError
from planc.runtime.process import Launch

_POLL_SECONDS = 0.1
_KNOCK_SECONDS = 1.0
_TWICE = "rank/twice"
_HELP = "give every process a RANK of its own, from 0 to WORLD_SIZE - 1; torchrun does"


class Store(Protocol):
    """The methods that this needs of a `torch.distributed.Store`."""

    def set(self, key: str, value: str, /) -> None: ...

    def get(self, key: str, /) -> bytes: ...

    def add(self, key: str, amount: int, /) -> int: ...

    def check(self, keys: list[str], /) -> bool: ...


class Claim:
    """This process's rank on this machine, until it is closed. RunError where another process has it.

    The other one hears of it the next time that it asks. Systems without abstract names know no claims.
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
                raise _twice(f"RANK = {self._rank} is that of another process on {_host()}") from None
            return
        self._socket = own

    def require_alone(self) -> None:
        """RunError if a process that has come later claims the same rank."""
        if self._socket is None:
            return
        with contextlib.suppress(BlockingIOError):
            self._socket.accept()[0].close()
            raise _twice(f"RANK = {self._rank} is that of another process on {_host()}")

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
    """RunError, naming a free port, if rank 0 cannot listen where it has to."""
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
    """Returns once the store's port is open; RunError where nobody listens there in time."""
    assert launch.address is not None and launch.port is not None, "several ranks meet somewhere"
    deadline = time.monotonic() + patience.total_seconds()
    reason = ""
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
                f"rank {launch.rank} on {_host()}: nobody listens at {launch.address}:{launch.port} after "
                f"{patience.total_seconds():.0f} s ({reason}): {who} has not started there, or has ended",
                code=ExitCode.COMMUNICATION,
                help=f"see why {who} is not there; check MASTER_ADDR and MASTER_PORT, and that one process "
                "has RANK = 0",
                is_shared=False,
            )
        time.sleep(_POLL_SECONDS)


def register(store: Store, launch: Launch) -> None:
    """Puts this rank on the store's list; RunError if it is there already, on this rank and on all others."""
    place = f"{_host()} (process {os.getpid()})"
    if store.add(f"rank/{launch.rank}", 1) == 1:
        store.set(f"rank/{launch.rank}/place", place)
        return
    first = store.get(f"rank/{launch.rank}/place").decode()
    store.set(_TWICE, f"RANK = {launch.rank} is that of two processes, on {first} and on {place}")
    require_once(store)


def require_once(store: Store) -> None:
    """RunError if any rank is there twice."""
    if store.check([_TWICE]):
        raise _twice(store.get(_TWICE).decode())


def await_keys(store: Store, keys: list[str], *, patience: timedelta, claim: Claim | None = None) -> bool:
    """Whether all keys are set in time; RunError if a rank turns out to be there twice."""
    deadline = time.monotonic() + patience.total_seconds()
    while not store.check(keys):
        require_once(store)
        if claim is not None:
            claim.require_alone()
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _twice(text: str) -> RunError:
    return RunError(text, code=ExitCode.COMMUNICATION, help=_HELP, is_shared=False)


def _host() -> str:
    return socket.gethostname()
