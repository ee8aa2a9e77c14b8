"""Open a user's files: regular files only, every failure a DataError that names the file."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

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
