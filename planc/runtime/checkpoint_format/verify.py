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

_ANOTHER_STEP = "move its folder aside to go on from the step before, or restore it from a copy"
_MAX_MANIFEST_BYTES = 4 * 2**30
"""Some twenty million chunks: a thousand tensors, each on as many ranks as anybody has."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a checkpoint: the file or tensor, and what about it."""

    subject: str
    text: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.text}"


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a committed checkpoint, of the step that the directory's name says.

    Raises CorruptCheckpointError. Nothing else in the directory is looked at.
    """
    return parse_manifest(read_manifest_text(directory), directory=directory)


def parse_manifest(text: str, *, directory: Path) -> Manifest:
    """What `read_manifest` returns and raises, of a text already read."""
    content, is_as_sealed = unseal(text)
    try:
        manifest = Manifest.model_validate_json(content)
        # The model takes the last of two fields with one name, another reader may take the first. What
        # this planc writes, it need not search.
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
            f"{directory / MANIFEST_NAME} is not as it was saved: its own SHA-256 says so", help=_ANOTHER_STEP
        )
    step = step_of(directory)
    if step is not None and step != manifest.step:
        raise CorruptCheckpointError(
            f"{directory / MANIFEST_NAME} is of step {manifest.step}", help=_ANOTHER_STEP
        )
    return manifest


def read_manifest_text(directory: Path) -> str:
    """The manifest as it lies on disk, not yet validated. Raises CorruptCheckpointError if absent."""
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
                f"{directory} holds no {MANIFEST_NAME}", help="name a directory `step-N` that planc has saved"
            ) from error
        except UnicodeDecodeError as error:
            raise CorruptCheckpointError(
                f"{directory / MANIFEST_NAME} is not UTF-8 text", help=_ANOTHER_STEP
            ) from error


def verify(directory: Path) -> tuple[Problem, ...]:
    """Everything wrong with a checkpoint, none where it may be loaded. Unlisted files are not read."""
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
    """What is wrong with the plan that the checkpoint keeps, if it keeps one."""
    try:
        read_plan_text(directory, manifest=manifest)
    except CheckpointError as error:
        return (Problem(PLAN_NAME, error.message),)
    return ()


def read_plan_text(directory: Path, *, manifest: Manifest) -> str | None:
    """The compiled plan that saved a checkpoint, as it was saved; None where the checkpoint keeps none.

    Raises CorruptCheckpointError where it is damaged. Whether it is a plan is not looked at.
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
    """Those of the tensors `names` whose chunks do not hold every element exactly once."""
    problems = ((name, coverage_problem(manifest.tensors[name])) for name in names)
    return tuple(Problem(name, problem) for name, problem in problems if problem is not None)


def verify_files(directory: Path, *, manifest: Manifest, names: Iterable[str]) -> tuple[Problem, ...]:
    """What is wrong with the files `names`: ranks share the hashing by each naming some of them."""
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
    """The regular file `name` in a directory, to read. Symbolic links, pipes and devices are refused."""
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
            return f"{wanted.key} is not {wanted.dtype} {list(wanted.shape)} there"
    return None


def _content_problem(stream: BufferedReader, *, expected: FileEntry) -> str | None:
    size_bytes = os.fstat(stream.fileno()).st_size
    if size_bytes != expected.size_bytes:
        return f"holds {size_bytes} bytes, but {expected.size_bytes} were saved"
    if hashlib.file_digest(stream, "sha256").hexdigest() != expected.sha256:
        return "its SHA-256 is not the one that was saved"
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
            f"{directory / MANIFEST_NAME} is not of format 2 or {FORMAT_VERSION}",
            help="load it with the planc version that the manifest names",
        )
    return CorruptCheckpointError(
        f"{directory / MANIFEST_NAME} is not a manifest: {place + ': ' if place else ''}{first['msg']}",
        help=_ANOTHER_STEP,
    )
