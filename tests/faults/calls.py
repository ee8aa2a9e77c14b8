"""Meets every call by which a process changes files beneath a folder, before and after it is made.

A plugin of the tests, absent from the wheel. The wrapping lies just above the system: `os.mkdir` and its
like, `os.fsync`, and the write(2) of a file that Python has opened, below its buffers. It is never taken off:
the process that it is put on is a rank that ends soon.
"""

from __future__ import annotations

import builtins
import io
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

CallKind = Literal["create", "write", "fsync", "fsync directory", "mkdir", "rename", "unlink", "rmdir"]


@dataclass(frozen=True, slots=True)
class Call:
    """One call. `path` is absolute, `target` a rename's new name, `data` what is written at `offset`."""

    kind: CallKind
    path: str
    target: str = ""
    data: bytes = b""
    offset: int = 0
    descriptor: int = -1
    """Of the open file, for writes."""


class Meeting(Protocol):
    """What becomes of calls."""

    def before(self, call: Call) -> None:
        """Whatever happens instead of the call: an error, a death."""

    def after(self, call: Call) -> None:
        """Told once the call has succeeded. A `create` comes with the new file's descriptor."""


def meet_calls(root: Path, *, meeting: Meeting) -> None:
    """From now on `meeting` hears of every change that this process makes beneath `root`."""
    beneath = f"{os.path.realpath(root)}/"

    def concerns(path: str) -> bool:
        return f"{path}/".startswith(beneath)

    def wrap(name: str, kind: CallKind) -> None:
        real = getattr(os, name)

        def wrapped(path: Any, *arguments: Any, **options: Any) -> Any:
            source = _absolute(path, options.get("dir_fd", options.get("src_dir_fd")))
            if not concerns(source):
                return real(path, *arguments, **options)
            target = _absolute(arguments[0], options.get("dst_dir_fd")) if kind == "rename" else ""
            call = Call(kind, source, target)
            meeting.before(call)
            result = real(path, *arguments, **options)
            meeting.after(call)
            return result

        setattr(os, name, wrapped)

    for name, kind in _NAMES.items():
        wrap(name, kind)
    _wrap_fsync(concerns, meeting)
    _wrap_open(concerns, meeting)


_NAMES: dict[str, CallKind] = {
    "mkdir": "mkdir",
    "rename": "rename",
    "replace": "rename",
    "unlink": "unlink",
    "remove": "unlink",
    "rmdir": "rmdir",
}


def _absolute(path: Any, folder: int | None) -> str:
    """Where a path leads, its own name taken as it is: a link may be what is removed."""
    name = os.fspath(path)
    parent, last = os.path.split(name.rstrip("/"))
    if folder is not None:
        parent = os.path.join(_path_of(folder), parent)
    return os.path.join(os.path.realpath(parent or "."), last)


def _path_of(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")


def _wrap_fsync(concerns: Callable[[str], bool], meeting: Meeting) -> None:
    real = os.fsync

    def fsync(descriptor: int) -> None:
        path = _path_of(descriptor)
        if not concerns(path):
            return real(descriptor)
        is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        call = Call("fsync directory" if is_directory else "fsync", path)
        meeting.before(call)
        real(descriptor)
        return meeting.after(call)

    os.fsync = fsync


def _wrap_open(concerns: Callable[[str], bool], meeting: Meeting) -> None:
    real = io.open

    def open_file(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        # With an opener it is a temporary file, which no path leads to.
        if isinstance(file, int) or "opener" in options or not set(mode) & set("wxa+"):
            return real(file, mode, *arguments, **options)
        path = _absolute(file, None)
        if not concerns(path):
            return real(file, mode, *arguments, **options)
        if "a" in mode and os.path.exists(path):
            # Nothing changes before the first write.
            return io.TextIOWrapper(io.BufferedWriter(_MetFile(path, "a", meeting)), encoding="utf-8")
        meeting.before(Call("create", path))
        raw = _MetFile(path, mode.replace("b", "").replace("t", ""), meeting)
        meeting.after(Call("create", path, descriptor=raw.fileno()))
        buffered = io.BufferedWriter(raw)
        if "b" in mode:
            return buffered
        encoding = options.get("encoding") or (arguments[1] if len(arguments) > 1 else None)
        return io.TextIOWrapper(buffered, encoding=encoding)

    # pathlib looks in io, everything else among the builtins.
    io.open = open_file
    builtins.open = open_file


class _MetFile(io.FileIO):
    """A file whose every write(2) is met."""

    def __init__(self, path: str, mode: str, meeting: Meeting) -> None:
        super().__init__(path, mode)
        self._path = path
        self._meeting = meeting

    def write(self, data: Any) -> int:
        call = Call("write", self._path, data=bytes(data), offset=self.tell(), descriptor=self.fileno())
        self._meeting.before(call)
        written = super().write(data)
        assert written == len(call.data), "regular files take all"
        self._meeting.after(call)
        return written
