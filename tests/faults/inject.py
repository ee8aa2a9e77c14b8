"""Faults at the n-th change that a rank makes to its files, and traces of all changes."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import NoReturn

from tests.faults.calls import Call, meet_calls


class How(StrEnum):
    """What happens at a call."""

    KILL = "SIGKILL before it"
    KILL_HALF = "SIGKILL half-way through it"
    ERROR = "the system refuses it"
    FULL = "the file is on a full device"


@dataclass(frozen=True, slots=True)
class Fault:
    """`how` at the `at`-th call, from 1, of `rank`; `errno` is what an error says."""

    rank: int
    at: int
    how: How
    errno: int = 0


@dataclass(frozen=True, slots=True)
class Traced:
    """A call that was made, and when, in the machine's monotonic nanoseconds."""

    nanoseconds: int
    rank: int
    call: Call


class Injector:
    """Counts a rank's calls, keeps them, and does what `fault` says; None does nothing."""

    def __init__(self, rank: int, *, fault: Fault | None) -> None:
        self.traced: list[Traced] = []
        self._rank = rank
        self._fault = fault if fault is not None and fault.rank == rank else None
        self._count = 0

    def before(self, call: Call) -> None:
        self._count += 1
        if self._fault is None or self._fault.at != self._count:
            return
        match self._fault.how:
            case How.KILL:
                _die()
            case How.KILL_HALF:
                os.write(call.descriptor, call.data[: len(call.data) // 2])
                _die()
            case How.ERROR:
                raise OSError(self._fault.errno, os.strerror(self._fault.errno), call.path)
            case How.FULL:
                pass

    def after(self, call: Call) -> None:
        if self._fault is not None and self._fault.at == self._count and self._fault.how is How.FULL:
            full = os.open("/dev/full", os.O_WRONLY)
            os.dup2(full, call.descriptor)
            os.close(full)
        self.traced.append(Traced(time.monotonic_ns(), self._rank, replace(call, descriptor=-1)))


def inject(root: Path, *, rank: int, fault: Fault | None = None) -> Injector:
    """Puts an injector on this process, for good."""
    injector = Injector(rank, fault=fault)
    meet_calls(root, meeting=injector)
    return injector


def limit_file_size(num_bytes: int) -> None:
    """Files of this process grow no further, as under a quota."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, resource.RLIM_INFINITY))


class _Slow:
    """A disk that takes its time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def before(self, call: Call) -> None:
        if call.kind == "fsync":
            time.sleep(self._seconds)

    def after(self, call: Call) -> None:
        pass


def slow_down(root: Path, *, seconds: float) -> None:
    """Every fsync of a file beneath `root` takes this process so much longer, for good."""
    meet_calls(root, meeting=_Slow(seconds))


def exhaust_descriptors() -> Callable[[], None]:
    """This process opens no further file, until what is returned is called."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a process survives no SIGKILL")
