"""Open the files of a run directory: plain files only, never through a link, never blocking.

Anyone who may write to the directory may leave anything there. Opening a named pipe would wait for its other
end, a device may act when it is opened, and a link would let a run overwrite a file elsewhere. Everything
that reads or writes a run's files opens them here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from io import BufferedReader, FileIO
from itertools import count
from pathlib import Path
from typing import BinaryIO, TextIO

# Not every system has each of these; if links can't be rejected on opening, `_lstat_mode` must suffice.
_FLAGS = (
    getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)

_MAX_STALE = 3
"""Answers in a row that a file handle is stale, after each of which a file is opened again."""

_KINDS = (
    (stat.S_ISLNK, "symbolic link"),
    (stat.S_ISDIR, "directory"),
    (stat.S_ISFIFO, "named pipe"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISCHR, "device"),
    (stat.S_ISBLK, "device"),
)


class NotPlainError(OSError):
    """Something else is where a plain file or a directory belongs; `strerror` names it."""

    def __init__(self, path: Path, *, kind: str, wanted: str = "file") -> None:
        super().__init__(errno.EINVAL, f"it is a {kind}, not a plain {wanted}", str(path))


class TooLargeError(OSError):
    """A file is larger than any valid file in its place."""

    def __init__(self, path: Path, *, max_bytes: int) -> None:
        super().__init__(errno.EFBIG, f"it holds more than {max_bytes:_} bytes", str(path))


def kind_of(path: Path) -> str | None:
    """`file`, `directory`, `symbolic link`, ...; None where nothing has this name. A link is not followed."""
    mode = _lstat_mode(path)
    if mode is None:
        return None
    return next((name for is_kind, name in _KINDS if is_kind(mode)), "file")


@contextlib.contextmanager
def open_to_read(path: Path) -> Iterator[BufferedReader]:
    """The plain file at `path`, in bytes. OSError if there isn't one."""
    with os.fdopen(_open(path, os.O_RDONLY), "rb") as stream:
        yield stream


def open_unbuffered(path: Path) -> FileIO:
    """Open as `open_to_read` does, without a buffer, for the caller to close."""
    return os.fdopen(_open(path, os.O_RDONLY), "rb", buffering=0)


def read_bytes(path: Path, *, max_bytes: int) -> bytes:
    """All of a plain file. OSError if there isn't one, or if it holds more than `max_bytes`."""
    with open_to_read(path) as stream:
        content = stream.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise TooLargeError(path, max_bytes=max_bytes)
    return content


def read_utf8(path: Path, *, max_bytes: int) -> str:
    """Read as `read_bytes` does, and decode; UnicodeDecodeError if it is not UTF-8."""
    return read_bytes(path, max_bytes=max_bytes).decode()


def append(path: Path, lines: bytes) -> None:
    """Add whole lines to the plain file at `path`, created if it is absent: all of them, or none.

    A last line that a crash cut short is ended first, so no line is appended to it.
    """
    descriptor = _open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    with os.fdopen(descriptor, "r+b", buffering=0) as stream:
        end = stream.seek(0, os.SEEK_END)
        if end:
            stream.seek(end - 1)
            lines = lines if stream.read(1) == b"\n" else b"\n" + lines
        try:
            unwritten = memoryview(lines)
            while unwritten:
                unwritten = unwritten[stream.write(unwritten) :]
        except OSError:
            with contextlib.suppress(OSError):
                stream.truncate(end)
            raise


def open_to_overwrite(path: Path) -> TextIO:
    """The plain file at `path`, created if it is absent, to read and to write from its start."""
    descriptor = _open(path, os.O_RDWR | os.O_CREAT)
    return os.fdopen(descriptor, "r+", encoding="utf-8", errors="replace")


def create(path: Path) -> BinaryIO:
    """A new file at `path`, to read and write; FileExistsError if anything has this name, even a link."""
    return path.open("x+b")


def create_to_write(path: Path) -> BinaryIO:
    """Create as `create` does, to write only."""
    return path.open("xb")


def replace(path: Path, content: Iterable[bytes]) -> None:
    """Put a file with `content` at `path` by rename, replacing anything but a directory."""
    # Random, because several processes and threads write, and the name must not be guessable.
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    try:
        with create_to_write(temporary) as file:
            file.writelines(content)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def remove(path: Path) -> None:
    """Remove what has this name: a directory with everything in it, a link without its target.

    OSError if something in a directory can't be removed, after removing the rest.
    """
    kind = kind_of(path)
    if kind == "directory":
        shutil.rmtree(path, ignore_errors=True)
        if kind_of(path) is not None:
            shutil.rmtree(path)
    elif kind is not None:
        path.unlink()


def set_aside(path: Path) -> Path:
    """Rename what is at `path` to the first free `<name>.damaged-<n>` in its directory, and return that."""
    free = (path.with_name(f"{path.name}.damaged-{number}") for number in count(1))
    aside = next(one for one in free if not os.path.lexists(one))
    path.rename(aside)
    return aside


def _open(path: Path, flags: int) -> int:
    """A descriptor of the plain file at `path`.

    A client of a network file system may remember a file that has been replaced; asked again, it forgets it.
    """
    for _ in range(_MAX_STALE):
        try:
            return _opened(path, flags)
        except OSError as error:
            if error.errno != getattr(errno, "ESTALE", None):
                raise
    return _opened(path, flags)


def _opened(path: Path, flags: int) -> int:
    _require_plain(path, _lstat_mode(path))
    descriptor = os.open(path, flags | _FLAGS, 0o666)
    try:
        # The file may have been replaced between the check and the opening.
        opened, there = os.fstat(descriptor), os.lstat(path)
        _require_plain(path, opened.st_mode)
        if not getattr(os, "O_NOFOLLOW", 0) and not os.path.samestat(opened, there):
            raise NotPlainError(path, kind="symbolic link")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _require_plain(path: Path, mode: int | None) -> None:
    for is_kind, name in _KINDS:
        if mode is not None and is_kind(mode):
            raise NotPlainError(path, kind=name)


def _lstat_mode(path: Path) -> int | None:
    try:
        return os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
