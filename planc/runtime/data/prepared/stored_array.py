"""Arrays in prepared files, read in place: what is read is checked, and nothing is kept.

Files are read through the system's page cache, which all processes of a machine share, at the offset that is
needed. They are not mapped into memory: a mapped file that is cut short, or on a failing disk, would end the
process by SIGBUS instead of an error that names the file.
"""

from __future__ import annotations

import contextlib
import threading
import zlib
from collections import OrderedDict
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from planc.runtime.data.errors import StoredDataError
from planc.runtime.data.prepared.index import ArrayEntry
from planc.runtime.data.prepared.layout import (
    BLOCK_BYTES,
    CHECK_DTYPE,
    HEADER_BYTES,
    checks_name,
    file_name,
    header,
    little_endian,
)
from planc.runtime.files.plain_files import open_unbuffered

STARTS_PER_SAMPLE = 2_048
"""The number of document starts of which the first is also in memory: 4 MB for 10^9 documents."""
_MAX_OPEN = 48
"""Pairs of open files of an array: three arrays stay well below the usual limit of 1_024."""


class StoredArray:
    """A one-dimensional array over several files. Slices are read; `max` and `sha256` are known."""

    def __init__(self, folder: Path, *, name: str, entry: ArrayEntry) -> None:
        self.folder, self.name, self.entry = folder, name, entry
        self.dtype = little_endian(entry.dtype)
        self._files: OrderedDict[int, tuple[FileIO, FileIO]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def sha256(self) -> str:
        """The hash of all elements in little-endian order."""
        return self.entry.sha256

    def max(self) -> int:
        return self.entry.max

    def __len__(self) -> int:
        return self.entry.length

    def __getitem__(self, places: slice) -> npt.NDArray[Any]:
        """The elements of a slice without a step. StoredDataError if they can't be read or are damaged."""
        start, stop, step = places.indices(len(self))
        assert step == 1
        first, last = start * self.dtype.itemsize, max(start, stop) * self.dtype.itemsize
        size, parts = self.entry.shard_bytes, []
        while first < last:
            number = first // size
            end = min(last, (number + 1) * size)
            parts.append(self._read(number, first - number * size, end - number * size))
            first = end
        content = parts[0] if len(parts) == 1 else b"".join(parts)
        native = self.dtype.newbyteorder("=")
        return np.frombuffer(content, dtype=self.dtype).astype(native, copy=False)

    def _read(self, number: int, first: int, last: int) -> memoryview:
        """Data bytes [first, last) of a file, after checking every block that holds one."""
        held = self.entry.shards[number].data.size_bytes - HEADER_BYTES
        begin, end = first - first % BLOCK_BYTES, min(held, last + -last % BLOCK_BYTES)
        num_blocks = -(-(end - begin) // BLOCK_BYTES)
        try:
            with self._lock:
                data, checks = self._opened(number)
                content = _read_at(data, HEADER_BYTES + begin, end - begin)
                place = HEADER_BYTES + begin // BLOCK_BYTES * CHECK_DTYPE.itemsize
                expected = _read_at(checks, place, num_blocks * CHECK_DTYPE.itemsize)
        except OSError as error:
            path = self.folder / file_name(self.name, number)
            raise StoredDataError(f"cannot read {path}: {error.strerror or error}") from error
        view = memoryview(content)
        for block, check in enumerate(np.frombuffer(expected, dtype=CHECK_DTYPE)):
            if zlib.crc32(view[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES]) != check:
                path, place = (
                    self.folder / file_name(self.name, number),
                    HEADER_BYTES + begin + block * BLOCK_BYTES,
                )
                raise StoredDataError(f"{path} is damaged in the {BLOCK_BYTES:_} bytes from {place:_} on")
        return view[first - begin : last - begin]

    def _opened(self, number: int) -> tuple[FileIO, FileIO]:
        """A file and its checks; the least recently used ones are closed."""
        if number in self._files:
            self._files.move_to_end(number)
            return self._files[number]
        shard = self.entry.shards[number]
        num_held = (shard.data.size_bytes - HEADER_BYTES) // self.dtype.itemsize
        num_checks = (shard.checks.size_bytes - HEADER_BYTES) // CHECK_DTYPE.itemsize
        with contextlib.ExitStack() as opened:
            data = _open(self.folder / file_name(self.name, number), self.dtype, length=num_held)
            opened.callback(data.close)
            checks = _open(self.folder / checks_name(self.name, number), CHECK_DTYPE, length=num_checks)
            opened.pop_all()
        self._files[number] = (data, checks)
        while len(self._files) > _MAX_OPEN:
            for stale in self._files.popitem(last=False)[1]:
                stale.close()
        return data, checks


class StoredStarts:
    """Ascending positions in files. Of each STARTS_PER_SAMPLE of them, one is in memory."""

    def __init__(self, array: StoredArray, *, sampled: StoredArray) -> None:
        self.array = array
        self._sampled = sampled[:]

    def within(self, first: int, stop: int) -> npt.NDArray[np.int64]:
        """The positions in [first, stop)."""
        low = max(0, int(np.searchsorted(self._sampled, first, side="right")) - 1) * STARTS_PER_SAMPLE
        high = int(np.searchsorted(self._sampled, stop, side="left")) * STARTS_PER_SAMPLE
        found = self.array[low : min(high, len(self.array))]
        begin, end = np.searchsorted(found, (first, stop))
        return found[begin:end]


def _open(path: Path, dtype: np.dtype[Any], *, length: int) -> FileIO:
    """A file that holds `length` elements, and nothing else."""
    file = open_unbuffered(path)
    try:
        size = file.seek(0, 2)
        wanted = HEADER_BYTES + length * dtype.itemsize
        if size != wanted:
            raise StoredDataError(f"{path} has {size:_} bytes, not the {wanted:_} that were prepared")
        if _read_at(file, 0, HEADER_BYTES) != header(dtype, length=length):
            raise StoredDataError(f"{path} is damaged in its header")
    except BaseException:
        file.close()
        raise
    return file


def _read_at(file: FileIO, place: int, size: int) -> bytes:
    """`size` bytes from `place` on; OSError if the file ends before."""
    file.seek(place)
    content = file.read(size)
    while len(content) < size:
        more = file.read(size - len(content))
        if not more:
            raise OSError(f"it ends at byte {place + len(content):_}")
        content += more
    return content
