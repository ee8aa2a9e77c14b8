"""Prepare data: tokenize a source once, in flat memory, into a directory that appears whole or not at all.

    .parts-KEY/                 what is tokenized, from which an interrupted preparation resumes (`parts.py`)
    .tmp-MACHINE-KEY-RANDOM/    files are written and synced here; nobody reads them
    NAME-KEY-CONTENT/           the rename commits

One process at a time prepares the same data; others wait for its lock, which ends with the process. Data
that is there is used without the lock, and without a right to write.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from planc import __version__
from planc.runtime.checkpoint_format.commit import fsync_directory, make_durable
from planc.runtime.data.bad_documents import BadDocuments
from planc.runtime.data.chat import AnyDocument
from planc.runtime.data.columns import Totals
from planc.runtime.data.documents import spec_documents
from planc.runtime.data.errors import DataError, DataStorageError
from planc.runtime.data.packing import join
from planc.runtime.data.padding import fill
from planc.runtime.data.prepared.folder import (
    Prepared,
    add_known_state,
    find,
    of_same_sizes,
    read_prepared,
    require_sizes,
)
from planc.runtime.data.prepared.index import (
    ArrayEntry,
    ArrayName,
    Index,
    ReadEntry,
    index_text,
    plain,
)
from planc.runtime.data.prepared.layout import INDEX_NAME, SHARD_BYTES
from planc.runtime.data.prepared.leftovers import new_directory, pulse, remove_dead
from planc.runtime.data.prepared.parts import Parts, parts_folder, remove_parts
from planc.runtime.data.prepared.shards import FileColumns
from planc.runtime.data.prepared.source_files import await_tick, content_hash, entries_of
from planc.runtime.data.prepared.wanted import Wanted
from planc.runtime.data.tokenizers import Tokenizer
from planc.runtime.files.plain_files import create_to_write
from planc.runtime.ranks.reads import Reads

_REPORT_BYTES = 1 << 20
_LOCK = ".lock"


@dataclass(frozen=True, slots=True)
class Progress:
    """The amount prepared so far: bytes of text and tokens."""

    num_text_bytes: int
    num_tokens: int


Report = Callable[[Progress], None]
Say = Callable[[str], None]


def _silent(progress: Progress) -> None:
    pass


def prepare(
    root: Path,
    wanted: Wanted,
    *,
    name: str,
    report: Report = _silent,
    say: Say = lambda text: None,
    shard_bytes: int = SHARD_BYTES,
) -> Prepared:
    """The wanted data in `root`, prepared now unless it is there. `name` begins its directory's name.

    Raises DataError; nothing that is incomplete is left for anybody to read but the next preparer.
    """
    compared: set[Path] = set()
    wanted = wanted.now()
    if ready := find(root, wanted) or _with_same_content(root, wanted, compared=compared, say=say):
        remove_finished_parts(root, wanted, say=say)
        return ready
    with _storage_errors(root):
        make_durable(root)
    with _only_one(root, wanted, say=say):
        # Another process may have prepared it meanwhile.
        wanted = wanted.now()
        if ready := find(root, wanted) or _with_same_content(root, wanted, compared=compared, say=say):
            return ready
        remove_dead(root, lock=partial(_free, root, wanted), say=say)
        with _storage_errors(root), contextlib.closing(Parts(root, key=wanted.key, say=say)) as parts:
            made = _prepare(root, wanted, name=name, report=report, shard_bytes=shard_bytes, parts=parts)
        remove_parts(root, wanted.key, say=say)
        return made


def remove_finished_parts(root: Path, wanted: Wanted, *, say: Say) -> None:
    """Remove the parts of prepared data, which a preparer that died after its last step has left."""
    if parts_folder(root, wanted.key).exists():
        with _lock_if_free(root, wanted.key) as is_free:
            if is_free:
                remove_parts(root, wanted.key, say=say)


def _with_same_content(root: Path, wanted: Wanted, *, compared: set[Path], say: Say) -> Prepared | None:
    """Data whose source's files differ in their times alone, after hashing them; their state is kept.

    So is data whose source's times show nothing, but without a state. `compared` are the directories that
    have been compared.
    """
    for prepared in of_same_sizes(root, wanted):
        if prepared.folder in compared:
            continue
        compared.add(prepared.folder)
        if wanted.state is None:
            why = "the file system of the source makes up the times of files"
        else:
            why = f"the files of the source have other times than when {prepared.folder} was made"
        say(f"{why}: comparing content")
        await_tick(wanted.files)
        hashes = zip(wanted.files, prepared.index.files, strict=True)
        if all(content_hash(file) == entry.sha256 for file, entry in hashes):
            _require_unchanged(wanted)
            require_sizes(prepared)
            _remember(prepared.folder, wanted, say=say)
            return prepared
    return None


def _remember(folder: Path, wanted: Wanted, *, say: Say) -> None:
    """Keep a state of the source's files, so the next start need not compare their content."""
    if wanted.state is None:
        return
    try:
        add_known_state(folder, wanted.state)
    except OSError as error:
        say(f"cannot note that in {folder}, so the next start compares content again: {error.strerror}")


def _prepare(
    root: Path, wanted: Wanted, *, name: str, report: Report, shard_bytes: int, parts: Parts
) -> Prepared:
    with _storage_errors(root):
        temporary = new_directory(root, key=wanted.key)
    try:
        with _storage_errors(root):
            with pulse(temporary):
                index = _write(
                    temporary, wanted, name=name, report=report, shard_bytes=shard_bytes, parts=parts
                )
            return _commit(temporary, root / f"{plain(name)}-{wanted.key}-{_content(index)}")
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write(
    folder: Path, wanted: Wanted, *, name: str, report: Report, shard_bytes: int, parts: Parts
) -> Index:
    """The index of the files that are written into `folder`, itself the last of them."""
    await_tick(wanted.files)
    reads, columns = Reads(), FileColumns(folder, shard_bytes=shard_bytes)
    bad = BadDocuments(wanted.spec.skip_bad)
    with (
        contextlib.closing(columns),
        contextlib.closing(wanted.tokenizer.load(store=parts)) as tokenizer,
    ):
        found = spec_documents(wanted.spec, base=wanted.base, reads=reads, bad=bad)
        counted = _counted(found, columns, report)
        totals = _tokenize(counted, wanted, tokenizer=tokenizer, columns=columns, bad=bad)
        arrays = columns.finish()
    _require_some(arrays, totals)
    read = {entry.name: entry.value for entry in reads.entries if entry.kind == "file"}
    files = entries_of(wanted.files, hashes=read)
    _require_unchanged(wanted)
    index = Index(
        recipe=wanted.recipe,
        planc_version=__version__,
        name=name,
        files=files,
        reads=tuple(
            ReadEntry(kind=one.kind, name=one.name, value=one.value)
            for one in reads.take()
            if one.kind in ("file", "text")
        ),
        arrays=dict(arrays),
        **asdict(totals),
        end_of_document=tokenizer.end_of_document,
        marks=tokenizer.marks,
        left_out=bad.messages,
    )
    if wanted.state is not None:
        add_known_state(folder, wanted.state)
    with create_to_write(folder / INDEX_NAME) as stream:
        stream.write(index_text(index).encode())
        stream.flush()
        os.fsync(stream.fileno())
    fsync_directory(folder)
    return index


def _tokenize(
    documents: Iterable[AnyDocument],
    wanted: Wanted,
    *,
    tokenizer: Tokenizer,
    columns: FileColumns,
    bad: BadDocuments,
) -> Totals:
    if wanted.recipe.layout == "joined":
        return join(documents, tokenizer=tokenizer, columns=columns, bad=bad)
    return fill(
        documents,
        tokenizer=tokenizer,
        sequence_length=wanted.spec.sequence_length,
        is_shared=wanted.recipe.layout == "whole",
        too_long=wanted.spec.too_long,
        columns=columns,
        in_pairs=wanted.spec.in_pairs,
        bad=bad,
        images=wanted.spec.images,
    )


def _commit(temporary: Path, folder: Path) -> Prepared:
    """Rename into place. If another machine without a common lock was faster, its data is the same."""
    with contextlib.suppress(OSError):
        if not os.path.lexists(folder):
            temporary.rename(folder)
    prepared = read_prepared(folder)
    fsync_directory(folder.parent)
    return prepared


def _content(index: Index) -> str:
    """Hexadecimal digits that differ for another content of the source."""
    parts = [[file.name, file.size_bytes, file.sha256] for file in index.files]
    arrays = [[name, array.sha256] for name, array in sorted(index.arrays.items())]
    return hashlib.sha256(json.dumps([parts, arrays]).encode()).hexdigest()[:16]


def _counted(documents: Iterable[AnyDocument], columns: FileColumns, report: Report) -> Iterator[AnyDocument]:
    total = reported = 0
    for document in documents:
        yield document
        total += document.num_bytes
        if total - reported >= _REPORT_BYTES:
            reported = total
            report(Progress(total, columns.num_tokens))


def _require_some(arrays: Mapping[ArrayName, ArrayEntry], totals: Totals) -> None:
    """DataError for data without a token: its arrays would have no files."""
    if totals.num_documents == 0:
        raise DataError("the source has no documents", help="use a source that holds text")
    if "tokens" not in arrays or arrays["tokens"].length == 0:
        raise DataError(
            "no document of the source has a label",
            help="use a source that holds text; a document needs two tokens or more",
        )


def _require_unchanged(wanted: Wanted) -> None:
    """DataError if a file of the source has changed since `wanted` was made."""
    now = {file.name: file for file in wanted.now().files}
    before = {file.name: file for file in wanted.files}
    changed = [name for name in {**before, **now} if now.get(name) != before.get(name)]
    if changed:
        raise DataError(
            f"{changed[0]} was changed while it was being read",
            help="prepare the data again, once nothing writes its files",
        )


@contextmanager
def _only_one(root: Path, wanted: Wanted, *, say: Say) -> Iterator[None]:
    """Let in one process at a time that prepares this data."""
    # It comes with planc[run], and knows the locks of every system.
    from filelock import FileLock, Timeout

    with _storage_errors(root):
        lock = FileLock(root / f"{_LOCK}-{wanted.key}")
        with contextlib.suppress(Timeout):
            lock.acquire(blocking=False)
    if not lock.is_locked:
        say("another process is preparing the data: waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _free(root: Path, wanted: Wanted, key: str) -> Iterator[bool]:
    """Whether no live process prepares the data of a key, as far as locks show; none begins to meanwhile."""
    if key == wanted.key:
        # This process holds that lock.
        yield True
        return
    with _lock_if_free(root, key) as is_free:
        yield is_free


@contextmanager
def _lock_if_free(root: Path, key: str) -> Iterator[bool]:
    from filelock import FileLock, Timeout

    lock = FileLock(root / f"{_LOCK}-{key}")
    try:
        lock.acquire(blocking=False)
    except (Timeout, OSError, NotImplementedError):
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


@contextmanager
def _storage_errors(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataStorageError(
            f"cannot prepare data in {root}: {error.strerror or error}",
            help="free space there, or set PLANC_DATA to another directory",
        ) from error
    except NotImplementedError as error:
        raise DataStorageError(
            f"the file system of {root} has no locks", help="set PLANC_DATA to a directory on another one"
        ) from error
