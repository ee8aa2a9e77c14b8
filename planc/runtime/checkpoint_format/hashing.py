"""SHA-256 of pieces of files, by several threads: hashlib and reads release the interpreter's lock."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, TypeVar

from planc.runtime.cpus import num_cpus

_T = TypeVar("_T")

SMALL_BYTES = 2**18
"""The size below which handing bytes to a thread takes about as long as hashing them."""
MAX_THREADS = 4
"""More threads read faster than most storage, and other ranks of the machine hash too."""
_BLOCK_BYTES = 2**20


def sha256(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_of(stream: BinaryIO, num_bytes: int, *, buffer: bytearray) -> str | None:
    """The hash of the next bytes of an unbuffered stream; None if it ends before."""
    digest, view = hashlib.sha256(), memoryview(buffer)
    while num_bytes:
        found = stream.readinto(view[: min(num_bytes, len(buffer))])  # type: ignore[attr-defined]
        if not found:
            return None
        digest.update(view[:found])
        num_bytes -= found
    return digest.hexdigest()


def sha256_into(stream: BinaryIO, view: memoryview) -> str | None:
    """The hash of the next bytes of an unbuffered stream, read into `view`; None if it ends before."""
    digest, filled = hashlib.sha256(), 0
    while filled < len(view):
        # In pieces that stay in the CPU's cache until they are hashed.
        found = stream.readinto(view[filled : filled + _BLOCK_BYTES])  # type: ignore[attr-defined]
        if not found:
            return None
        digest.update(view[filled : filled + found])
        filled += found
    return digest.hexdigest()


def new_buffer() -> bytearray:
    return bytearray(_BLOCK_BYTES)


def in_threads(
    work: Callable[[Sequence[_T]], str | None], items: Sequence[_T], sizes: Sequence[int]
) -> str | None:
    """The first result of `work` on consecutive items, about equally many bytes for each thread."""
    num_threads = min(MAX_THREADS, num_cpus(), len(items), max(1, sum(sizes) // SMALL_BYTES))
    if num_threads <= 1:
        return work(items)
    groups = divided(items, sizes, num_groups=num_threads)
    with ThreadPoolExecutor(num_threads) as threads:
        return next((found for found in threads.map(work, groups) if found is not None), None)


def divided(items: Sequence[_T], sizes: Sequence[int], *, num_groups: int) -> list[list[_T]]:
    """Consecutive items in groups of about equally many bytes; a group may be empty."""
    groups: list[list[_T]] = [[] for _ in range(num_groups)]
    total, before = max(1, sum(sizes)), 0
    for item, size in zip(items, sizes, strict=True):
        groups[min(num_groups - 1, (2 * before + size) * num_groups // (2 * total))].append(item)
        before += size
    return groups
