"""The files of a source, and whether they changed since they were prepared.

Hashing a terabyte at every start would take hours. So a start compares what the system keeps about each file:
its size, and when its content and its entry last changed. The second time (ctime) can't be set, so no edit
keeps all three. Where only times differ, as on a copy, the content is hashed once and the times are kept.
Where a file system makes times up, they show nothing, and the content is hashed at every start.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from planc.data_sources import Source, kinds
from planc.runtime.data.errors import DataError
from planc.runtime.data.files import matched_files, open_regular_file
from planc.runtime.data.sources import stdlib_files
from planc.runtime.data.splits import split_files
from planc.runtime.file_systems import file_system_of, keeps_times

if TYPE_CHECKING:
    from planc.runtime.data.prepared.index import SourceEntry

_HASHED_BYTES = 1 << 20
_TICK_SECONDS = 0.1
"""A clock of file times that counts at least ten times a second, as all of Linux and macOS do."""
_COARSE_SECONDS = 2.1
"""FAT and some network file systems count whole seconds, or two."""


@dataclass(frozen=True, slots=True)
class FileState:
    """A file by name, and its size and times in nanoseconds."""

    name: str
    path: Path
    size_bytes: int
    modified: int
    changed: int
    has_own_times: bool = True
    """Whether its file system keeps the times itself, so a change of the content would show in them."""


def source_files(source: Source, *, base: Path) -> tuple[FileState, ...]:
    """The state of every file of a source, in the order of reading; none for a pinned commit of the Hub."""
    if source.hub is not None and not isinstance(source, kinds.TransformedSource):
        return ()
    match source:
        case kinds.ExtensionSource(code):
            return _states(((code.file, base / code.file),))
        case kinds.TransformedSource(rows, code):
            return (*source_files(rows, base=base), *_states(((code.file, base / code.file),)))
        case (
            kinds.ChatSource()
            | kinds.PairsSource()
            | kinds.HfDatasetSource()
            | kinds.LabeledSource()
            | kinds.MatchedSource()
            | kinds.MappedSource()
        ):
            return _states(split_files(source.patterns, split=source.split, subset=source.subset, base=base))
        case kinds.PythonStdlibSource():
            return _states(stdlib_files())
        case _:
            names = matched_files(getattr(source, "patterns", ()), base=base)
            return _states((name, base / name) for name in names)


def digest_of_states(files: Iterable[FileState]) -> str:
    """A SHA-256 that changes with any file's name, size or times."""
    states = [[file.name, file.size_bytes, file.modified, file.changed] for file in files]
    return hashlib.sha256(json.dumps(states).encode()).hexdigest()


def await_tick(files: Sequence[FileState]) -> None:
    """Wait until a change of any file would give it other times than it has now."""
    now = time.time_ns()
    for file in files:
        newest = max(file.modified, file.changed)
        tick = _TICK_SECONDS if newest % 10**9 else _COARSE_SECONDS
        # A time in the future comes from another machine's clock, which no wait here would reach.
        if 0 <= now - newest < tick * 10**9:
            time.sleep(tick)
            return


def entries_of(files: Iterable[FileState], *, hashes: dict[str, str]) -> tuple[SourceEntry, ...]:
    """The files with the hashes of their content, which are read here unless they are in `hashes`."""
    # It imports numpy, which the doctor of a light installation does without.
    from planc.runtime.data.prepared.index import SourceEntry

    return tuple(
        SourceEntry(
            name=file.name, size_bytes=file.size_bytes, sha256=hashes.get(file.name) or content_hash(file)
        )
        for file in files
    )


def content_hash(file: FileState) -> str:
    """The SHA-256 of a file, read in parts. Raises DataError."""
    content = hashlib.sha256()
    with open_regular_file(file.path, name=file.name) as stream:
        while part := stream.read(_HASHED_BYTES):
            content.update(part)
    return content.hexdigest()


def _states(files: Iterable[tuple[str, Path]]) -> tuple[FileState, ...]:
    file_systems: dict[int, str | None] = {}
    return tuple(_state(name, path, file_systems=file_systems) for name, path in files)


def _state(name: str, path: Path, *, file_systems: dict[int, str | None]) -> FileState:
    """The state of a file; `file_systems` are the types of those seen so far, by their device."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise DataError(
            f"cannot open {name}: {error.strerror}", help="check that the file exists and can be read"
        ) from error
    if status.st_dev not in file_systems:
        file_systems[status.st_dev] = file_system_of(path)
    has_own_times = keeps_times(file_systems[status.st_dev], status)
    return FileState(name, path, status.st_size, status.st_mtime_ns, status.st_ctime_ns, has_own_times)
