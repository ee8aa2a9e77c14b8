"""Read every byte of prepared data, and of the source's files, and compare them with what was prepared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from planc.runtime.checkpoint_format.records import FileEntry
from planc.runtime.data.errors import DataError
from planc.runtime.data.prepared.folder import Prepared, array_files, read_prepared, require_sizes
from planc.runtime.data.prepared.shards import file_entry
from planc.runtime.data.prepared.source_files import content_hash
from planc.runtime.data.prepared.wanted import Wanted

Advance = Callable[[int], None]
"""Called with the bytes that have been read since the last call."""


def problems(folder: Path, *, advance: Advance = lambda size: None) -> Iterator[str]:
    """Find faults in the files of prepared data; none if every byte is as it was written."""
    try:
        prepared = read_prepared(folder)
        require_sizes(prepared)
    except DataError as error:
        yield error.message
        return
    for name, size_bytes, sha256 in array_files(prepared.index):
        path = folder / name
        try:
            if file_entry(path) != FileEntry(size_bytes=size_bytes, sha256=sha256):
                yield f"{path} differs from what was prepared"
        except OSError as error:
            yield f"cannot read {path}: {error.strerror}"
        advance(size_bytes)


def source_problems(
    prepared: Prepared, wanted: Wanted, *, advance: Advance = lambda size: None
) -> Iterator[str]:
    """Find changes of the source's files; none if their content is what was prepared."""
    now = {one.name: one for one in wanted.files}
    for entry in prepared.index.files:
        file = now.pop(entry.name, None)
        if file is None:
            yield f"{entry.name} was prepared, but the source no longer has it"
        elif file.size_bytes != entry.size_bytes or content_hash(file) != entry.sha256:
            yield f"{entry.name} differs from what was prepared"
        advance(entry.size_bytes)
    for name in now:
        yield f"{name} was not prepared, but the source has it now"
