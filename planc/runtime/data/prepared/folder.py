"""Directories of prepared data: find the one that a plan wants, read its index, check its files' sizes."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from planc.runtime.data.errors import DataError, DataStorageError, StoredDataError
from planc.runtime.data.prepared.index import MAX_INDEX_BYTES, ArrayEntry, Index, parse_index
from planc.runtime.data.prepared.layout import INDEX_NAME, KNOWN_NAME, checks_name, file_name
from planc.runtime.data.prepared.wanted import Wanted
from planc.runtime.files.plain_files import read_utf8, replace
from planc.strict_json import loads
from planc.tables import plural

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*-[0-9a-f]{16}-[0-9a-f]{16}")
_MAX_KNOWN = 256
"""States of the source that are remembered: one for each copy of its files."""
_MAX_KNOWN_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Prepared:
    """Prepared data on disk."""

    folder: Path
    index: Index


def find(root: Path, wanted: Wanted) -> Prepared | None:
    """The data that is wanted, if it is in `root`, complete, and its source's files are as they were.

    Raises StoredDataError if it is damaged as far as its index and the sizes of its files show, and DataError
    if it was prepared without more documents than may be left out.
    """
    for one in of_recipe(root, wanted):
        if not wanted.files or (wanted.state is not None and wanted.state in known_states(one.folder)):
            require_sizes(one)
            _require_few_left_out(one, limit=wanted.spec.skip_bad)
            return one
    return None


def of_same_sizes(root: Path, wanted: Wanted) -> Iterator[Prepared]:
    """Data that was made in the same way, of files with the names and sizes that the source's have now."""
    sizes = [(one.name, one.size_bytes) for one in wanted.files]
    for one in of_recipe(root, wanted):
        if sizes == [(file.name, file.size_bytes) for file in one.index.files]:
            yield one


def named(root: Path, wanted: Wanted, *, name: str) -> Prepared | None:
    """The data in a directory that another process has found to be what is wanted; None if it isn't there."""
    for one in of_recipe(root, wanted):
        if one.folder.name == name:
            require_sizes(one)
            _require_few_left_out(one, limit=wanted.spec.skip_bad)
            return one
    return None


def _require_few_left_out(prepared: Prepared, *, limit: int) -> None:
    left_out = prepared.index.left_out
    if len(left_out) > limit:
        raise DataError(
            f"{prepared.folder} was prepared without {plural(len(left_out), 'bad document')}, and `skip_bad` "
            f"is {limit:_}; the first is: {left_out[0]}",
            help=f"write `skip_bad = {len(left_out)}` in `data`, or fix the documents in its index.json",
        )


def of_recipe(root: Path, wanted: Wanted) -> Iterator[Prepared]:
    """Data that was made in the same way, of whatever content the source's files had."""
    for folder in folders(root):
        if folder.name.split("-")[-2] == wanted.key:
            found = read_prepared(folder)
            if found.index.recipe == wanted.recipe:
                yield found


def folders(root: Path) -> tuple[Path, ...]:
    """The directories of prepared data in `root`, by name. What a preparer has not finished is not one."""
    try:
        with os.scandir(root) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise DataStorageError(
            f"cannot list {root}: {error.strerror}", help="set PLANC_DATA to a readable directory"
        ) from error
    return tuple(root / name for name in sorted(names) if _NAME.fullmatch(name))


def read_prepared(folder: Path) -> Prepared:
    """The data in a directory, by its index alone. StoredDataError if that is damaged or missing."""
    path = folder / INDEX_NAME
    try:
        return Prepared(folder, parse_index(read_utf8(path, max_bytes=MAX_INDEX_BYTES)))
    except OSError as error:
        raise StoredDataError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise StoredDataError(f"{path} is damaged: {error}") from error


def array_files(index: Index) -> Iterator[tuple[str, int, str]]:
    """The name, size and SHA-256 of every file of every array."""
    for name, array in index.arrays.items():
        yield from _files(name, array)


def _files(name: str, array: ArrayEntry) -> Iterator[tuple[str, int, str]]:
    for number, shard in enumerate(array.shards):
        yield file_name(name, number), shard.data.size_bytes, shard.data.sha256
        yield checks_name(name, number), shard.checks.size_bytes, shard.checks.sha256


def require_sizes(prepared: Prepared) -> None:
    """StoredDataError unless every file is a plain one of its size."""
    try:
        with os.scandir(prepared.folder) as entries:
            found = {entry.name: entry.stat(follow_symlinks=False) for entry in entries}
    except OSError as error:
        raise StoredDataError(f"cannot list {prepared.folder}: {error.strerror}") from error
    for name, size_bytes, _ in array_files(prepared.index):
        status = found.get(name)
        if status is None or not stat.S_ISREG(status.st_mode):
            what = "is missing" if status is None else "is not a plain file"
            raise StoredDataError(f"{prepared.folder / name} {what}")
        if status.st_size != size_bytes:
            text = f"has {status.st_size:_} bytes, not the {size_bytes:_} that were prepared"
            raise StoredDataError(f"{prepared.folder / name} {text}")


def known_states(folder: Path) -> tuple[str, ...]:
    """The states in which the source's files had the prepared content, the newest last.

    Empty if the file is missing or damaged: then the content is compared, and the file is replaced.
    """
    try:
        states = loads(read_utf8(folder / KNOWN_NAME, max_bytes=_MAX_KNOWN_BYTES))["states"]
    except (OSError, ValueError, KeyError, TypeError):
        return ()
    return tuple(state for state in states if isinstance(state, str)) if isinstance(states, list) else ()


def add_known_state(folder: Path, state: str) -> None:
    """Remember that the source's files have the prepared content in this state. OSError if that fails."""
    states = [*(one for one in known_states(folder) if one != state), state][-_MAX_KNOWN:]
    replace(folder / KNOWN_NAME, [json.dumps({"states": states}).encode()])
