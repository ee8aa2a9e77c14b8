"""The base of a checkpoint that leaves out frozen parameters: the weight files that hold them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from planc.runtime.checkpoint_format.errors import CheckpointError, storage_errors
from planc.runtime.checkpoint_format.hashing import MAX_THREADS, new_buffer, sha256_of
from planc.runtime.checkpoint_format.manifest import Base
from planc.runtime.checkpoint_format.part_files import Problem
from planc.runtime.checkpoint_format.records import FileEntry

_SHOWN_DIGITS = 12


def hash_files(folder: Path, names: Sequence[str]) -> dict[str, FileEntry]:
    """The size and SHA-256 of files of a directory, by name. CheckpointStorageError for one not readable."""
    with ThreadPoolExecutor(MAX_THREADS) as threads:
        return dict(zip(names, threads.map(lambda name: _entry(folder / name), names), strict=True))


def base_problems(base: Base, files: Mapping[str, FileEntry]) -> Iterator[Problem]:
    """The differences of weight files from those that a checkpoint names."""
    for name, saved in base.files.items():
        now = files.get(name)
        if now is None:
            yield Problem(name, "is missing")
        elif now != saved:
            digests = f"{now.sha256[:_SHOWN_DIGITS]}, and the checkpoint names {saved.sha256[:_SHOWN_DIGITS]}"
            yield Problem(name, f"has SHA-256 {digests}")
    yield from (Problem(name, "is not a file of the base") for name in files if name not in base.files)


def refuse_other_base(base: Base, files: Mapping[str, FileEntry], *, folder: Path) -> None:
    """CheckpointError that lists how a directory's weight files differ from a checkpoint's base."""
    problems = list(map(str, base_problems(base, files)))
    if problems:
        summary = f"the base has changed: {folder} does not have the frozen parameters of the checkpoint"
        raise CheckpointError(
            "\n".join([summary, *problems]),
            help=f"restore the weight files of {base.path} as they were when the run began",
        )


def _entry(path: Path) -> FileEntry:
    # Files of the Hub's cache are links.
    with storage_errors(f"cannot read {path}"), path.open("rb", buffering=0) as stream:
        size_bytes = path.stat().st_size
        digest = sha256_of(stream, size_bytes, buffer=new_buffer())
    if digest is None:
        raise CheckpointError(f"{path} became shorter while it was read", help="restore the file")
    return FileEntry(size_bytes=size_bytes, sha256=digest)
