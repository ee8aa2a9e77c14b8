"""Find and open a user's files: regular files only, every failure a DataError that names the file."""

from __future__ import annotations

import glob
import os
import stat
from pathlib import Path
from typing import BinaryIO

from planc.data_sources.globs import without_file
from planc.runtime.data.errors import DataError
from planc.runtime.ranks.reads import Reads


def open_regular_file(path: Path, *, name: str) -> BinaryIO:
    """`path` opened for reading; errors call it `name`. Raises DataError for anything but a regular file."""
    try:
        mode = os.stat(path).st_mode
        # Opening a FIFO would block forever and a device never ends, so check before opening.
        if not stat.S_ISREG(mode):
            raise DataError(f"{name} is not a regular file", help="pass a regular file")
        return open(path, "rb")
    except OSError as error:
        raise DataError(
            f"cannot open {name}: {error.strerror}", help="check that the file exists and can be read"
        ) from error


def read_regular_file(path: Path, *, name: str, reads: Reads | None = None) -> bytes:
    """The content of `path`, which is recorded in `reads`.

    Errors call it `name`. Raises DataError for anything but a regular file.
    """
    with open_regular_file(path, name=name) as file:
        content = file.read()
    if reads is not None:
        reads.add_content("file", name, content)
    return content


def matched_files(patterns: tuple[str, ...], *, base: Path) -> tuple[str, ...]:
    """Paths relative to `base`: pattern by pattern, sorted within one, each file once.

    Directories are skipped; a pattern that matches nothing else is a DataError.
    """
    files: dict[str, None] = {}
    for pattern in patterns:
        matches = glob.glob(pattern, root_dir=base, recursive=True)
        names = sorted(name for name in matches if not (base / name).is_dir())
        if not names:
            raise DataError(f'pattern "{pattern}" matches no file', help=_no_file_help(pattern, base=base))
        files.update(dict.fromkeys(names))
    return tuple(files)


def _no_file_help(pattern: str, *, base: Path) -> str:
    """Return the help for a pattern that matches nothing: where it starts, and what is there instead."""
    start = f"patterns are relative to {os.path.abspath(base)}"
    found = without_file(pattern, base=base)
    if found is None:
        return start
    there = f"has {found.near or 'no files'}" if found.is_searched else "does not exist"
    return f"{start}; {found.directory} {there}"
