"""The content of a user's file as it is read: decompressed, without a byte order mark, hashed on the way."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import gzip
import hashlib
import io
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from planc.runtime.data.errors import DataError
from planc.runtime.data.files import open_regular_file
from planc.runtime.ranks.reads import Reads

_READ_BYTES = 1 << 20


def _zstd(raw: BinaryIO) -> Any:
    # Lazy: it takes a quarter of a second to import. It comes with `datasets`.
    import pyarrow

    return pyarrow.CompressedInputStream(pyarrow.PythonFile(raw, mode="r"), "zstd")


@dataclass(frozen=True, slots=True)
class _Compression:
    """A compression format: the first bytes of its files, and the function that opens them."""

    magic: bytes
    open: Callable[[BinaryIO], Any]


_COMPRESSIONS: Mapping[str, _Compression] = {
    "gzip": _Compression(b"\x1f\x8b", partial(gzip.GzipFile, None, "rb", 9)),
    "zstd": _Compression(b"\x28\xb5\x2f\xfd", _zstd),
    "xz": _Compression(b"\xfd7zXZ\x00", lzma.LZMAFile),
    "bzip2": _Compression(b"BZh", bz2.BZ2File),
}
_MAX_MAGIC = 8


def _table(start: bytes) -> str | None:
    """The format of a file of columns by its first bytes, as no text begins."""
    if start.startswith(b"PAR1"):
        return "Parquet"
    # A stream begins with a mark and the length of its schema, which is under 16 MiB.
    is_stream = start.startswith(b"\xff\xff\xff\xff") and start[7:8] == b"\x00"
    return "Arrow" if start.startswith(b"ARROW1") or is_stream else None


class _Hashed(io.RawIOBase):
    """A file that is hashed as it is read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._sha256 = file, hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        num_bytes = cast(io.FileIO, self._file).readinto(buffer)
        self._sha256.update(memoryview(buffer)[:num_bytes])
        return num_bytes

    def hash(self) -> str:
        """The SHA-256 of the whole file, the rest of which is read here."""
        while part := self._file.read(_READ_BYTES):
            self._sha256.update(part)
        return self._sha256.hexdigest()


@dataclass(frozen=True, slots=True)
class Content:
    """A file that is being read. `table` is its format if it holds columns; then `stream` is of no use."""

    stream: io.BufferedReader
    compression: str | None
    table: str | None
    start_bytes: int
    """The length of the byte order mark."""

    @property
    def can_seek(self) -> bool:
        """Whether a position in the file is one in its content."""
        return self.compression is None


@contextlib.contextmanager
def open_content(path: Path, *, name: str, reads: Reads | None = None) -> Iterator[Content]:
    """A file's content after any byte order mark. Its first bytes select the compression, not its name.

    `reads` records the file as it is on disk, once the content has been read. Raises DataError, also for
    damage that shows while the content is read.
    """
    with open_regular_file(path, name=name) as file:
        hashed = None if reads is None else _Hashed(file)
        source = file if hashed is None else cast(BinaryIO, io.BufferedReader(hashed, _READ_BYTES))
        start = _peeked(source)
        compression = next((one for one, how in _COMPRESSIONS.items() if start.startswith(how.magic)), None)
        with _damage(name, compression=compression):
            stream = (
                source if compression is None else _decompressed(source, name=name, compression=compression)
            )
            start = _peeked(stream)
            mark = stream.read(len(codecs.BOM_UTF8)) if start.startswith(codecs.BOM_UTF8) else b""
            yield Content(cast(io.BufferedReader, stream), compression, _table(start), len(mark))
        if hashed is not None and reads is not None:
            reads.add("file", name, hashed.hash())


def _peeked(stream: BinaryIO) -> bytes:
    return cast(io.BufferedReader, stream).peek(_MAX_MAGIC)[:_MAX_MAGIC]


def _decompressed(source: BinaryIO, *, name: str, compression: str) -> BinaryIO:
    try:
        opened = _COMPRESSIONS[compression].open(source)
    except ImportError as error:
        raise DataError(
            f"reading {name} needs the pyarrow library: it is compressed by {compression}",
            help="install it: pip install 'planc[run]'; or decompress the file",
        ) from error
    return cast(BinaryIO, io.BufferedReader(opened, _READ_BYTES))


@contextlib.contextmanager
def _damage(name: str, *, compression: str | None) -> Iterator[None]:
    """Report what a decompressor can't read as damage of the file."""
    try:
        yield
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        if compression is None:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise DataError(f"cannot read {name}: {reason}", help="check the file's disk") from error
        raise DataError(
            f"{name} is damaged: its {compression} data cannot be decompressed: {error}",
            help="copy or compress the file again",
        ) from error
