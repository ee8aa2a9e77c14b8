"""Write a rank's part, and prove that it is as it was written: every byte of both of its files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from planc.runtime.checkpoint_format.errors import CorruptCheckpointError, refuse_unread, storage_errors
from planc.runtime.checkpoint_format.hashing import (
    SMALL_BYTES,
    divided,
    in_threads,
    new_buffer,
    sha256,
    sha256_into,
    sha256_of,
)
from planc.runtime.checkpoint_format.manifest import Manifest, PartEntry
from planc.runtime.checkpoint_format.part import Chunk, Part, chunks_of, header_of, part_name, shard_name
from planc.runtime.checkpoint_format.records import FileEntry, entry_of
from planc.runtime.files.plain_files import (
    NotPlainError,
    create_to_write,
    open_to_read,
    open_unbuffered,
)
from planc.strict_json import loads

ANOTHER_STEP = "move its directory aside to resume from an earlier step, or restore it from a backup"
_MAX_PART_BYTES = 2**30
"""Some five million chunks of one rank."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a checkpoint: the file or tensor, and what about it."""

    subject: str
    text: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.text}"


@dataclass(frozen=True, slots=True)
class Share:
    """Some of a rank's chunks, to be verified by one process: the `index`-th of `count` equal shares."""

    rank: int
    index: int = 0
    count: int = 1


class Taker(Protocol):
    """Takes the values of chunks while they are verified. Threads call it, each for other chunks."""

    def view(self, chunk: Chunk) -> memoryview | None:
        """Memory of the chunk's size to read it into; None for a chunk that is not needed."""

    def take(self, chunk: Chunk, view: memoryview) -> None:
        """The chunk is in `view`, and as it was saved."""


def shares(manifest: Manifest, *, rank: int, world_size: int) -> tuple[Share, ...]:
    """Return the parts that one of `world_size` ranks verifies: all together verify every chunk once.

    A rank gets its own part if as many ranks saved it, and neighbors' parts otherwise: most of what it reads.
    """
    writers = manifest.writing_ranks()
    if not writers:
        return ()
    if world_size <= len(writers):
        first, last = (-(-one * len(writers) // world_size) for one in (rank, rank + 1))
        return tuple(Share(writer) for writer in writers[first:last])
    place = rank * len(writers) // world_size
    first, last = (-(-one * world_size // len(writers)) for one in (place, place + 1))
    return (Share(writers[place], rank - first, last - first),)


def write_part(
    directory: Path, chunks: Sequence[Chunk], data: Iterable[memoryview], *, step: int, rank: int
) -> PartEntry:
    """Write a rank's chunks and their hashes, each file synced; return their entry in the manifest.

    `data` are the chunks' bytes, in order. Only one or two at a time are kept in memory.
    """
    header = header_of(tuple(chunks))
    path = directory / shard_name(rank)
    hashes: list[Future[str] | str] = []
    with (
        storage_errors(f"cannot write {path}"),
        create_to_write(path) as stream,
        ThreadPoolExecutor(1) as hasher,
    ):
        stream.write(header)
        for chunk, content in zip(chunks, data, strict=True):
            assert len(content) == chunk.entry.size_bytes, f"{chunk.entry.key} has {len(content)} bytes"
            if len(content) < SMALL_BYTES:
                hashes.append(sha256(content))
                stream.write(content)
                continue
            # Hashed while it is written.
            hashing = hasher.submit(sha256, content)
            hashes.append(hashing)
            stream.write(content)
            # At most this chunk is in memory when the next one comes.
            hashing.result()
        # fsync does not write what Python still buffers.
        stream.flush()
        os.fsync(stream.fileno())
    digests = [digest if isinstance(digest, str) else digest.result() for digest in hashes]
    part = Part(
        step=step,
        rank=rank,
        chunks={chunk.entry.key: digest for chunk, digest in zip(chunks, digests, strict=True)},
    )
    written = write_synced(directory / part_name(rank), part.model_dump_json())
    size_bytes = len(header) + sum(chunk.entry.size_bytes for chunk in chunks)
    return PartEntry(size_bytes=written.size_bytes, sha256=written.sha256, shard_bytes=size_bytes)


def write_synced(path: Path, text: str) -> FileEntry:
    """Write a new file, and make it durable."""
    content = text.encode()
    with storage_errors(f"cannot write {path}"), create_to_write(path) as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    return entry_of(content)


def verify_part(
    directory: Path, *, manifest: Manifest, share: Share, taker: Taker | None = None
) -> tuple[Problem, ...]:
    """The problem of a rank's part, or of its file as far as `share` goes, if there is one."""
    name = part_name(share.rank)
    chunks = chunks_of(manifest.contents, rank=share.rank)
    try:
        part = read_part(directory, manifest=manifest, rank=share.rank)
        problem = _part_problem(part, chunks=chunks)
        if problem is None:
            name = shard_name(share.rank)
            problem = _length_problem(directory, manifest=manifest, chunks=chunks, rank=share.rank)
        if problem is None:
            problem = _values_problem(directory, chunks=chunks, part=part, share=share, taker=taker)
    except OSError as error:
        refuse_unread(error, directory / name)
        problem = f"cannot be read ({error.strerror})"
    except CorruptCheckpointError as error:
        problem = error.message
    return (Problem(name, problem),) if problem is not None else ()


def read_part(directory: Path, *, manifest: Manifest, rank: int) -> Part:
    """A rank's part, which has the hash that the manifest states. CorruptCheckpointError, or OSError."""
    expected = manifest.parts[rank]
    assert expected is not None, f"rank {rank} has written a part"
    with open_beneath(directory, name=part_name(rank)) as stream:
        size_bytes = os.fstat(stream.fileno()).st_size
        if size_bytes != expected.size_bytes:
            raise _corrupt(f"holds {size_bytes} bytes, but {expected.size_bytes} were saved")
        if size_bytes > _MAX_PART_BYTES:
            raise _corrupt("is larger than a part can be")
        content = stream.read(size_bytes)
    if sha256(content) != expected.sha256:
        raise _corrupt("its SHA-256 differs from the one that was saved")
    part = _parsed(content)
    if (part.step, part.rank) != (manifest.step, rank):
        raise _corrupt(f"is of rank {part.rank} at step {part.step}")
    return part


@contextmanager
def open_beneath(directory: Path, *, name: str) -> Iterator[BufferedReader]:
    """The regular file `name` in a directory, to read. Symbolic links, pipes and devices are rejected."""
    with ExitStack() as stack:
        try:
            stream = stack.enter_context(open_to_read(directory / name))
        except NotPlainError as error:
            raise _corrupt(f"{name} can't be read: {error.strerror}") from error
        yield stream


@contextmanager
def _open_shard(directory: Path, *, rank: int) -> Iterator[FileIO]:
    name = shard_name(rank)
    try:
        stream = open_unbuffered(directory / name)
    except NotPlainError as error:
        raise _corrupt(f"{name} can't be read: {error.strerror}") from error
    with stream:
        yield stream


def _parsed(content: bytes) -> Part:
    try:
        part = Part.model_validate_json(content)
        # Of two fields with one name pydantic takes the last, another reader may take the first.
        if part.model_dump_json().encode() != content:
            loads(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise _corrupt(f"is not a part: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except ValueError as error:
        raise _corrupt(f"is not a part: {error}") from error
    return part


def _part_problem(part: Part, *, chunks: Sequence[Chunk]) -> str | None:
    keys = [chunk.entry.key for chunk in chunks]
    found = list(part.chunks)
    if found == keys:
        return None
    strange = next((key for key in found if key not in set(keys)), None)
    if strange is not None:
        return f"holds {strange}, which the manifest does not place there"
    absent = next((key for key in keys if key not in part.chunks), None)
    return f"does not hold {absent}" if absent is not None else "its chunks are in another order"


def _length_problem(
    directory: Path, *, manifest: Manifest, chunks: tuple[Chunk, ...], rank: int
) -> str | None:
    """The problem of a file's length or header."""
    entry = manifest.parts[rank]
    assert entry is not None, "a rank with a part has an entry"
    header = header_of(chunks)
    size_bytes = len(header) + sum(chunk.entry.size_bytes for chunk in chunks)
    if entry.shard_bytes != size_bytes:
        return f"holds {entry.shard_bytes} bytes by the manifest, but {size_bytes} by its tensors"
    with _open_shard(directory, rank=rank) as stream:
        found_bytes = os.fstat(stream.fileno()).st_size
        if found_bytes != size_bytes:
            return f"holds {found_bytes} bytes, but {size_bytes} were saved"
        if stream.read(len(header)) != header:
            return "its header is not the one that was saved"
    return None


def _values_problem(
    directory: Path, *, chunks: tuple[Chunk, ...], part: Part, share: Share, taker: Taker | None
) -> str | None:
    """The problem of the first of a share's chunks that are not as they were saved."""
    header_bytes = len(header_of(chunks))

    def read(some: Sequence[Chunk]) -> str | None:
        buffer = new_buffer()
        with _open_shard(directory, rank=share.rank) as stream:
            for chunk in some:
                stream.seek(header_bytes + chunk.begin)
                view = taker.view(chunk) if taker is not None else None
                if view is None:
                    digest = sha256_of(stream, chunk.entry.size_bytes, buffer=buffer)
                else:
                    digest = sha256_into(stream, view)
                if digest != part.chunks[chunk.entry.key]:
                    return f"its SHA-256 differs from the one that was saved, in {chunk.entry.key}"
                if taker is not None and view is not None:
                    taker.take(chunk, view)
        return None

    sizes = [chunk.entry.size_bytes for chunk in chunks]
    mine = divided(chunks, sizes, num_groups=share.count)[share.index]
    return in_threads(read, mine, [chunk.entry.size_bytes for chunk in mine])


def _corrupt(message: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(message, help=ANOTHER_STEP)
