"""Proof that a checkpoint on disk is what was saved: sizes, hashes, headers, coverage."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from pydantic import ValidationError

from planc.runtime.checkpoint_format.coverage import coverage_problem
from planc.runtime.checkpoint_format.errors import CheckpointError, CorruptCheckpointError, storage_errors
from planc.runtime.checkpoint_format.layout import step_of
from planc.runtime.checkpoint_format.manifest import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    FileEntry,
    Manifest,
    unseal,
)
from planc.runtime.checkpoint_format.shards import Entry, decode_header
from planc.runtime.run_directory.plain_files import NotPlainError, open_to_read
from planc.runtime.run_directory.run_files import PLAN_NAME
from planc.strict_json import loads

_ANOTHER_STEP = "move its directory aside to resume from an earlier step, or restore it from a backup"
_MAX_MANIFEST_BYTES = 4 * 2**30
"""Some twenty million chunks: a thousand tensors, each on the ranks of the largest cluster."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a checkpoint: the file or tensor, and what about it."""

    subject: str
    text: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.text}"


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a committed checkpoint, for the step in the directory's name.

    Raises CorruptCheckpointError. Reads nothing else in the directory.
    """
    return parse_manifest(read_manifest_text(directory), directory=directory)


def parse_manifest(text: str, *, directory: Path) -> Manifest:
    """What `read_manifest` returns and raises, of a text already read."""
    content, is_as_sealed = unseal(text)
    try:
        manifest = Manifest.model_validate_json(content)
        # Of two fields with one name pydantic takes the last, another reader may take the first. A manifest
        # exactly as this planc writes it needs no search.
        if manifest.model_dump_json() != content:
            loads(content)
    except ValidationError as error:
        raise _invalid_manifest(directory, error=error) from error
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpointError(
            f"{directory / MANIFEST_NAME} is not a manifest: {error}", help=_ANOTHER_STEP
        ) from error
    if not is_as_sealed:
        raise CorruptCheckpointError(
            f"{directory / MANIFEST_NAME} has changed since it was saved: its SHA-256 does not match",
            help=_ANOTHER_STEP,
        )
    step = step_of(directory)
    if step is not None and step != manifest.step:
        raise CorruptCheckpointError(
            f"{directory / MANIFEST_NAME} is for step {manifest.step}", help=_ANOTHER_STEP
        )
    return manifest


def read_manifest_text(directory: Path) -> str:
    """The text of the manifest, not yet validated. Raises CorruptCheckpointError if absent."""
    with storage_errors(f"cannot read {directory}"):
        try:
            with open_beneath(directory, name=MANIFEST_NAME) as stream:
                if os.fstat(stream.fileno()).st_size > _MAX_MANIFEST_BYTES:
                    raise CorruptCheckpointError(
                        f"{directory / MANIFEST_NAME} is larger than a manifest can be", help=_ANOTHER_STEP
                    )
                return stream.read().decode()
        except FileNotFoundError as error:
            raise CorruptCheckpointError(
                f"{directory} has no {MANIFEST_NAME}", help="pass a `step-N` directory that planc has saved"
            ) from error
        except UnicodeDecodeError as error:
            raise CorruptCheckpointError(
                f"{directory / MANIFEST_NAME} is not UTF-8 text", help=_ANOTHER_STEP
            ) from error


def verify(directory: Path) -> tuple[Problem, ...]:
    """Everything wrong with a checkpoint; empty if it may be loaded. Unlisted files are not read."""
    try:
        manifest = read_manifest(directory)
    except CheckpointError as error:
        return (Problem(MANIFEST_NAME, error.message),)
    return (
        *verify_plan(directory, manifest=manifest),
        *verify_coverage(manifest, names=sorted(manifest.tensors)),
        *verify_files(directory, manifest=manifest, names=sorted(manifest.files)),
    )


def verify_plan(directory: Path, *, manifest: Manifest) -> tuple[Problem, ...]:
    """The problem of the plan in the checkpoint, if there are a plan and a problem."""
    try:
        read_plan_text(directory, manifest=manifest)
    except CheckpointError as error:
        return (Problem(PLAN_NAME, error.message),)
    return ()


def read_plan_text(directory: Path, *, manifest: Manifest) -> str | None:
    """The compiled plan that saved a checkpoint, as it was saved; None if the checkpoint has none.

    Raises CorruptCheckpointError if it is damaged. Does not check that it is a plan.
    """
    if manifest.plan is None:
        return None
    with storage_errors(f"cannot read {directory}"), open_beneath(directory, name=PLAN_NAME) as stream:
        problem = _content_problem(stream, expected=manifest.plan)
        if problem is not None:
            raise CorruptCheckpointError(f"{directory / PLAN_NAME} {problem}", help=_ANOTHER_STEP)
        stream.seek(0)
        try:
            return stream.read().decode()
        except UnicodeDecodeError as error:
            text = f"{directory / PLAN_NAME} is not UTF-8 text"
            raise CorruptCheckpointError(text, help=_ANOTHER_STEP) from error


def verify_coverage(manifest: Manifest, *, names: Iterable[str]) -> tuple[Problem, ...]:
    """The tensors of `names` whose chunks do not hold every element exactly once."""
    problems = ((name, coverage_problem(manifest.tensors[name])) for name in names)
    return tuple(Problem(name, problem) for name, problem in problems if problem is not None)


def verify_files(directory: Path, *, manifest: Manifest, names: Iterable[str]) -> tuple[Problem, ...]:
    """The problems of the files `names`: ranks share the hashing by each passing some of them."""
    expected = _entries_by_file(manifest)
    problems = []
    for name in names:
        try:
            with open_beneath(directory, name=name) as stream:
                problem = _file_problem(stream, manifest=manifest, name=name, expected=expected.get(name, []))
        except OSError as error:
            problem = f"cannot be read ({error.strerror})"
        except CorruptCheckpointError as error:
            problem = error.message
        if problem is not None:
            problems.append(Problem(name, problem))
    return tuple(problems)


@contextmanager
def open_beneath(directory: Path, *, name: str) -> Iterator[BufferedReader]:
    """The regular file `name` in a directory, to read. Symbolic links, pipes and devices are rejected."""
    with ExitStack() as stack:
        try:
            stream = stack.enter_context(open_to_read(directory / name))
        except NotPlainError as error:
            raise CorruptCheckpointError(
                f"{name} can't be read: {error.strerror}", help=_ANOTHER_STEP
            ) from error
        yield stream


def _file_problem(
    stream: BufferedReader, *, manifest: Manifest, name: str, expected: Iterable[Entry]
) -> str | None:
    entry = manifest.files[name]
    problem = _content_problem(stream, expected=entry)
    if problem is not None:
        return problem
    size_bytes = entry.size_bytes
    found = {header_entry.key: header_entry for header_entry in decode_header(stream, size_bytes=size_bytes)}
    for wanted in expected:
        if found.get(wanted.key) != wanted:
            return f"{wanted.key} is not {wanted.dtype} {list(wanted.shape)} in the file"
    return None


def _content_problem(stream: BufferedReader, *, expected: FileEntry) -> str | None:
    size_bytes = os.fstat(stream.fileno()).st_size
    if size_bytes != expected.size_bytes:
        return f"holds {size_bytes} bytes, but {expected.size_bytes} were saved"
    if hashlib.file_digest(stream, "sha256").hexdigest() != expected.sha256:
        return "its SHA-256 differs from the one that was saved"
    return None


def _entries_by_file(manifest: Manifest) -> dict[str, list[Entry]]:
    entries: dict[str, list[Entry]] = {}
    for tensor in manifest.tensors.values():
        for chunk in tensor.chunks:
            entries.setdefault(chunk.file, []).append(Entry(chunk.key, tensor.dtype, chunk.sizes))
    return entries


def _invalid_manifest(directory: Path, *, error: ValidationError) -> CorruptCheckpointError:
    errors = error.errors(include_url=False, include_context=False)
    first = errors[0]
    place = ".".join(str(part) for part in first["loc"])
    # A later format may have other fields too.
    if any(one["loc"] == ("format_version",) for one in errors):
        return CorruptCheckpointError(
            f"{directory / MANIFEST_NAME} is not in format 2 or {FORMAT_VERSION}",
            help="load it with the planc version that the manifest names",
        )
    return CorruptCheckpointError(
        f"{directory / MANIFEST_NAME} is not a manifest: {place + ': ' if place else ''}{first['msg']}",
        help=_ANOTHER_STEP,
    )
