"""Write arrays to prepared files as they grow. Memory holds one block of each, whatever their size."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, get_args

import numpy as np

from planc.runtime.checkpoint_format.records import FileEntry
from planc.runtime.data.columns import Array
from planc.runtime.data.prepared import layout
from planc.runtime.data.prepared.index import ArrayEntry, ArrayName, Shard, StoredType
from planc.runtime.files.plain_files import create, open_to_read

_HASHED_BYTES = 1 << 20


class FileColumns:
    """Columns that are written to the files of one directory."""

    def __init__(self, folder: Path, *, shard_bytes: int) -> None:
        assert shard_bytes % layout.BLOCK_BYTES == 0
        self.folder, self.shard_bytes = folder, shard_bytes
        self._columns: dict[ArrayName, FileColumn] = {}

    def column(self, name: str, *, dtype: np.dtype[Any]) -> FileColumn:
        assert name in get_args(ArrayName)
        array: ArrayName = name  # type: ignore[assignment]
        if array not in self._columns:
            self._columns[array] = FileColumn(self.folder, name, dtype=dtype, shard_bytes=self.shard_bytes)
        return self._columns[array]

    @property
    def num_tokens(self) -> int:
        """The tokens so far."""
        return self._columns["tokens"].length if "tokens" in self._columns else 0

    def finish(self) -> Mapping[ArrayName, ArrayEntry]:
        """Write what is left and sync every file."""
        return {name: column.finish() for name, column in self._columns.items()}

    def close(self) -> None:
        """Close what is open, after a failure too: Windows removes no open file."""
        for column in self._columns.values():
            column.close()


class FileColumn:
    """One array: a new file whenever one is full. Files are complete once `finish` returns."""

    def __init__(self, folder: Path, name: str, *, dtype: np.dtype[Any], shard_bytes: int) -> None:
        self.folder, self.name, self.shard_bytes = folder, name, shard_bytes
        self.dtype = layout.little_endian(dtype.name)
        self.length = self.max = 0
        self._shards: list[Shard] = []
        self._hash = hashlib.sha256()
        self._pending = bytearray()
        self._file: BinaryIO | None = None
        self._checks: list[int] = []
        self._held = 0
        """Data bytes in the file that is open."""

    def append(self, values: Array) -> None:
        self._pending += values.astype(self.dtype).tobytes()
        self.length += len(values)
        whole = len(self._pending) - len(self._pending) % layout.BLOCK_BYTES
        if whole:
            content = memoryview(bytes(self._pending[:whole]))
            del self._pending[:whole]
            for start in range(0, whole, layout.BLOCK_BYTES):
                self._write(content[start : start + layout.BLOCK_BYTES])

    def finish(self) -> ArrayEntry:
        if self._pending:
            self._write(memoryview(bytes(self._pending)))
            self._pending.clear()
        self._finish_file()
        kind: StoredType = self.dtype.name  # type: ignore[assignment]
        return ArrayEntry(
            dtype=kind,
            length=self.length,
            max=self.max,
            sha256=self._hash.hexdigest(),
            shard_bytes=self.shard_bytes,
            shards=tuple(self._shards),
        )

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, block: memoryview) -> None:
        if self._file is None:
            self._file = create(self.folder / layout.file_name(self.name, len(self._shards)))
            # Overwritten when the number of elements is known; until then no reader accepts it.
            self._file.write(bytes(layout.HEADER_BYTES))
        self._file.write(block)
        self._hash.update(block)
        self._checks.append(zlib.crc32(block))
        self._held += len(block)
        self.max = max(self.max, int(np.frombuffer(block, dtype=self.dtype).max()))
        if self._held == self.shard_bytes:
            self._finish_file()

    def _finish_file(self) -> None:
        if self._file is None:
            return
        number = len(self._shards)
        self._file.seek(0)
        self._file.write(layout.header(self.dtype, length=self._held // self.dtype.itemsize))
        _sync(self._file)
        self.close()
        path = self.folder / layout.checks_name(self.name, number)
        with create(path) as checks:
            checks.write(layout.header(layout.CHECK_DTYPE, length=len(self._checks)))
            checks.write(np.array(self._checks, dtype=layout.CHECK_DTYPE).tobytes())
            _sync(checks)
        data = file_entry(self.folder / layout.file_name(self.name, number))
        self._shards.append(Shard(data=data, checks=file_entry(path)))
        self._checks, self._held = [], 0


def file_entry(path: Path) -> FileEntry:
    """The size and the hash of a plain file, read in parts. OSError if it can't be read."""
    content, size = hashlib.sha256(), 0
    with open_to_read(path) as file:
        while part := file.read(_HASHED_BYTES):
            content.update(part)
            size += len(part)
    return FileEntry(size_bytes=size, sha256=content.hexdigest())


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
