"""The files of a split: of globs, of dataset directories, and of parts of a split such as `train[:10%]`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planc.runtime.data.arrow_rows import library, reason
from planc.runtime.data.errors import DataError
from planc.runtime.data.files import matched_files
from planc.runtime.errors import STOPS

Files = tuple[tuple[str, Path], ...]
"""Files by name and path, in the order of reading."""
Count = Callable[[str, Path], int]
"""The number of records in a file, by name and path."""

_TRAIN = "train"


@dataclass(frozen=True, slots=True)
class Part:
    """Files, and which of their records are read; None for all."""

    files: Files
    rows: range | None = None


def split_files(patterns: tuple[str, ...], *, split: str, subset: str | None, base: Path) -> Files:
    """All files that hold a split, or a part of it. Raises DataError. Counts nothing."""
    names = {part.partition("[")[0].partition("(")[0].strip() for part in split.split("+")}
    found = (_files(patterns, name=name, subset=subset, base=base) for name in sorted(names))
    return tuple(dict.fromkeys(one for files in found for one in files))


def parts_of(
    patterns: tuple[str, ...], *, split: str, subset: str | None, base: Path, count: Count
) -> Iterator[Part]:
    """A split's parts in the order that it names them. Raises DataError.

    `datasets` parses the split, unless it is a plain name; then nothing is counted.
    """
    if split.isidentifier():
        yield Part(_files(patterns, name=split, subset=subset, base=base))
        return
    lengths = _Lengths(patterns, subset=subset, base=base, count=count)
    datasets = library(f"the split `{split}`")
    try:
        instructions = datasets.arrow_reader.ReadInstruction.from_spec(split).to_absolute(lengths)
    except DataError:
        raise
    # ValueError or AssertionError.
    except (ValueError, AssertionError) as error:
        raise DataError(
            f"split `{split}` cannot be read: {reason(error)}",
            help="write a name, or a part of it such as `train[:10%]` or `train[100:200]`",
        ) from error
    for instruction in instructions:
        files = _files(patterns, name=instruction.splitname, subset=subset, base=base)
        yield Part(
            files,
            range(
                instruction.from_ or 0,
                lengths[instruction.splitname] if instruction.to is None else instruction.to,
            ),
        )


class _Lengths(dict[str, int]):
    """The number of records of a split by its name, counted when it is asked for."""

    def __init__(self, patterns: tuple[str, ...], *, subset: str | None, base: Path, count: Count) -> None:
        super().__init__()
        self._patterns, self._subset, self._base, self._count = patterns, subset, base, count

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self[name] >= 0

    def __missing__(self, name: str) -> int:
        files = _files(self._patterns, name=name, subset=self._subset, base=self._base)
        self[name] = sum(self._count(*file) for file in files)
        return self[name]


def _files(patterns: tuple[str, ...], *, name: str, subset: str | None, base: Path) -> Files:
    """The files of the split `name`: directories have several splits, and other files are all of `train`."""
    files_by_name: dict[str, Path] = {}
    for pattern in patterns:
        if (base / pattern).is_dir():
            files = _directory_files(base / pattern, split=name, subset=subset, label=pattern)
            files_by_name.update((f"{pattern.rstrip('/')}/{one}", base / pattern / one) for one in files)
            continue
        if name != _TRAIN:
            raise DataError(
                f"split `{name}` of `{pattern}`: files have the split `train` alone",
                help="name a dataset's directory, or leave `split` out",
            )
        files_by_name.update((file, base / file) for file in matched_files((pattern,), base=base))
    return tuple(files_by_name.items())


def _directory_files(folder: Path, *, split: str, subset: str | None, label: str) -> list[str]:
    """The files of a split of a dataset's directory, relative to it."""
    if (folder / "dataset_dict.json").is_file():
        names = _stored(folder / "dataset_dict.json", "splits", label=label)
        if split not in names:
            raise _no_split(split, names, label=label)
        inner = _directory_files(folder / split, split=_TRAIN, subset=None, label=f"{label}/{split}")
        return [f"{split}/{one}" for one in inner]
    if (folder / "state.json").is_file():
        if split != _TRAIN:
            raise _no_split(split, [_TRAIN], label=label)
        return [one["filename"] for one in _stored(folder / "state.json", "_data_files", label=label)]
    found = _inferred(folder, subset=subset, label=label)
    if split not in found:
        raise _no_split(split, list(found), label=label)
    return found[split]


def _stored(file: Path, key: str, *, label: str) -> list[Any]:
    """A list in a file that `save_to_disk` wrote."""
    try:
        found = json.loads(file.read_bytes())[key]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{label}/{file.name} is damaged: {reason(error)}", help="save the dataset again"
        ) from error
    return list(found)


def _inferred(folder: Path, *, subset: str | None, label: str) -> Mapping[str, list[str]]:
    """The files of each split, as `datasets` infers them from names, or reads them in README.md."""
    datasets = library(label)
    try:
        builder = datasets.load_dataset_builder(str(folder), subset)
        files = builder.config.data_files or {}
        return {
            str(name): [os.path.relpath(one, folder.resolve()) for one in found]
            for name, found in files.items()
        }
    # No data, several subsets, files of an unknown kind: each has its own error.
    except STOPS:
        raise
    except BaseException as error:
        raise DataError(
            f"the directory {label} cannot be read as a dataset: {reason(error)}",
            help="name files, for example `*.parquet`, or a directory that `save_to_disk` wrote",
        ) from error


def _no_split(split: str, names: list[str], *, label: str) -> DataError:
    listed = ", ".join(names) or "none"
    return DataError(f"{label} has no split `{split}`", help=f"write one of its splits: {listed}")
