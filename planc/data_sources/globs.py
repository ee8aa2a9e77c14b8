"""Globs of a data source that match no file, and what their directory has instead."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from planc.record import record

_MAX_LISTED = 10_000
"""Files that are counted to name a near match: a dataset may have many more."""


@record
class NoFile:
    """A pattern without a file. `directory` is the absolute path of the part before the first wildcard.

    `near` counts the most common kind of file there, as in ``19 `*.txt` ``; it is empty if there is none.
    """

    pattern: str
    directory: Path
    near: str

    @property
    def is_searched(self) -> bool:
        """Whether the directory exists: then the pattern is at fault."""
        return self.directory.is_dir()


def without_file(pattern: str, *, base: Path) -> NoFile | None:
    """What is there for a pattern relative to `base` that matches no file; None if it matches some."""
    names = glob.iglob(pattern, root_dir=base, recursive=True)
    if any(not (base / name).is_dir() for name in names):
        return None
    parts = pattern.split("/")
    fixed = next((at for at, part in enumerate(parts[:-1]) if glob.has_magic(part)), len(parts) - 1)
    directory = Path(os.path.abspath(base.joinpath("/".join(parts[:fixed]) or ("/" if fixed else "."))))
    return NoFile(pattern, directory, _near(directory, is_deep="**" in parts))


def _near(directory: Path, *, is_deep: bool) -> str:
    files = list(islice(_files(directory, is_deep=is_deep), _MAX_LISTED))
    kinds = Counter(suffix for name in files if (suffix := os.path.splitext(name)[1]))
    if not kinds:
        return ""
    suffix, count = kinds.most_common(1)[0]
    more = "at least " if len(files) == _MAX_LISTED else ""
    return f"{more}{count} `*{suffix}`"


def _files(directory: Path, *, is_deep: bool) -> Iterator[str]:
    for _, _, names in os.walk(directory):
        yield from names
        if not is_deep:
            return
