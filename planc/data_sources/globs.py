"""Files that data sources name: their suffixes, the names of Hub datasets, and globs that match none."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from planc.record import record

DATASET_SUFFIXES = (".parquet", ".arrow", ".json", ".jsonl")
COMPRESSED_SUFFIXES = (".gz", ".zst", ".xz", ".bz2")


def without_compression(name: str) -> str:
    """A file's name without the suffix of a compression: `a.jsonl` for `a.jsonl.gz`."""
    return next((name.removesuffix(one) for one in COMPRESSED_SUFFIXES if name.endswith(one)), name)


PREFIX = "hf://datasets/"


@record
class HubDataset:
    """A dataset of the Hub at one commit."""

    repository: str
    revision: str

    @property
    def name(self) -> str:
        """The dataset in messages."""
        return f"{self.repository}@{self.revision[:12]}"

    @staticmethod
    def of(patterns: Sequence[str]) -> HubDataset | None:
        """The dataset that a source's only pattern names, as `hf://datasets/org/name@commit`."""
        if len(patterns) != 1 or not patterns[0].startswith(PREFIX):
            return None
        repository, _, revision = patterns[0].removeprefix(PREFIX).partition("@")
        return HubDataset(repository, revision)


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
    """Look around a pattern relative to `base` that matches no file; None if it matches some."""
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
