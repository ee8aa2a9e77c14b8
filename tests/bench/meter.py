"""What a process holds and sends, as the kernel counts it: no part of planc or of PyTorch is asked."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch.distributed as dist

_SENT_OFFSET, _RETRANSMITTED_OFFSET = 200, 208
"""Of tcpi_bytes_sent and tcpi_bytes_retrans in struct tcp_info (include/uapi/linux/tcp.h)."""
_TCP_INFO_BYTES = 216
_M_MMAP_THRESHOLD, _THRESHOLD_BYTES = -3, 64 * 2**10
"""Of mallopt (malloc.h)."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """The most that a process had allocated during steps, beyond its imports, and the bytes that it sent."""

    peak_bytes: int
    sent_bytes: int


@dataclass(slots=True)
class Meter:
    """Measures `num_steps` steps of this process after the first `num_warm_up`.

    It is made after all imports. The peak is the kernel's own mark (VmHWM), reset when the first measured
    step begins, so no short peak is missed. Pages of mapped files don't count: they are code and weights on
    disk, and the system takes them back as it likes.
    """

    num_warm_up: int
    num_steps: int
    allocated_bytes: int = field(default_factory=lambda: memory("RssAnon"))
    sent: Mapping[int, int] = field(default_factory=dict)
    footprint: Footprint | None = None

    @property
    def last_step(self) -> int:
        """Its beginning ends the measurement, so work that a side postpones by a step is in it."""
        return self.num_warm_up + self.num_steps + 1

    def begins(self, step: int) -> None:
        """Every rank must call it before each step; they count from 1."""
        if step == self.num_warm_up + 1:
            dist.barrier()
            reset_peak()
            self.sent = sent_bytes()
        elif step == self.last_step:
            # All that was sent for these steps has arrived, so the kernel has counted it.
            dist.barrier()
            sent = sum_since(self.sent)
            peak = memory("VmHWM") - memory("RssFile") - memory("RssShmem")
            self.footprint = Footprint(peak - self.allocated_bytes, sent)


def return_freed_memory() -> None:
    """Makes glibc return every freed block of 64 KiB or more to the system at once, from here on.

    Otherwise it keeps blocks of up to 32 MiB, and how many depends on the order in which threads free them:
    peaks of the same training then differ by a seventh.
    """
    if ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _THRESHOLD_BYTES) != 1:
        raise OSError("mallopt refused M_MMAP_THRESHOLD")


def reset_peak() -> None:
    """Makes VmHWM what is resident now (proc_pid_clear_refs(5))."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def memory(name: str) -> int:
    """Bytes of this process by the name of /proc/self/status."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def sum_since(before: Mapping[int, int]) -> int:
    """Bytes sent over all connections since `before`. RuntimeError if one was closed and can't be read."""
    now = sent_bytes()
    if closed := before.keys() - now.keys():
        raise RuntimeError(f"{len(closed)} connections were closed while bytes were counted")
    return sum(sent - before.get(connection, 0) for connection, sent in now.items())


def sent_bytes() -> dict[int, int]:
    """The bytes that this process sent over each of its TCP connections, by the socket's inode."""
    sent = {}
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except FileNotFoundError:
            # The listing's own descriptor.
            continue
        if target.startswith("socket:"):
            with socket.socket(fileno=os.dup(int(descriptor))) as copy:
                if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM:
                    sent[int(target[len("socket:[") : -1])] = _sent(copy)
    return sent


def _sent(connection: socket.socket) -> int:
    """Every byte once, though it may have been sent again."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    (total,) = struct.unpack_from("Q", info, _SENT_OFFSET)
    (again,) = struct.unpack_from("Q", info, _RETRANSMITTED_OFFSET)
    return int(total - again)
