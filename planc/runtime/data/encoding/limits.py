"""The limit of time and memory for a batch of documents."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on what a batch may take: a base, and more for each of its bytes.

    CPU time, so a busy machine rejects nothing that an idle one accepts. Tokenizers of published models take
    about a second and 100 MiB for a mebibyte.
    """

    cpu_seconds: int = 30
    cpu_seconds_a_mebibyte: int = 60
    memory_bytes: int = 2**30
    memory_bytes_a_byte: int = 1024

    def seconds(self, num_bytes: int) -> int:
        return self.cpu_seconds + math.ceil(self.cpu_seconds_a_mebibyte * num_bytes / 2**20)

    def memory(self, num_bytes: int) -> int:
        """Bytes beyond what the process holds before."""
        return self.memory_bytes + self.memory_bytes_a_byte * num_bytes

    def data(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_data(cls, data: dict[str, Any]) -> Self:
        """The limits that `data` encoded."""
        return cls(**data)


LIMITS = Limits()


def allow(limits: Limits, *, num_bytes: int) -> None:
    """Limit this process to what a batch of `num_bytes` may take from now on.

    The system ends it beyond its CPU time, and refuses it memory. Windows has no such limits, and macOS none
    of memory.
    """
    if sys.platform == "win32":
        return
    # Absent on Windows.
    import resource

    _lower(resource.RLIMIT_CPU, math.ceil(time.process_time()) + limits.seconds(num_bytes))
    _lower(resource.RLIMIT_DATA, _held_bytes() + limits.memory(num_bytes))


def confine() -> None:
    """Let this process write no file and leave no core dump."""
    if sys.platform == "win32":
        return
    import resource

    for limit in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        resource.setrlimit(limit, (0, 0))


def _lower(limit: int, value: int) -> None:
    """Set the soft limit, which may rise again with the next batch."""
    import resource

    _, hard = resource.getrlimit(limit)
    resource.setrlimit(limit, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _held_bytes() -> int:
    """The writable memory of this process, as RLIMIT_DATA counts it; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[5])
    except FileNotFoundError:
        return 0
    import resource

    return pages * resource.getpagesize()
