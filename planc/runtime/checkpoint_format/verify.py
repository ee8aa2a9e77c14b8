"""Proof that a checkpoint on disk is what was saved: the manifest, the plan, and every rank's part."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from io import BufferedReader
from pathlib import Path

from pydantic import ValidationError

from planc.runtime.checkpoint_format.errors import (
    CheckpointError,
    CorruptCheckpointError,
    refuse_unread,
    storage_errors,
)
from planc.runtime.checkpoint_format.layout import step_of
from planc.runtime.checkpoint_format.manifest import FORMAT_VERSION, MANIFEST_NAME, Manifest
from planc.runtime.checkpoint_format.part_files import (
    ANOTHER_STEP,
    Problem,
    Share,
    Taker,
    open_beneath,
    shares,
    verify_part,
)
from planc.runtime.checkpoint_format.records import FileEntry, unseal
from planc.runtime.files.run_files import PLAN_NAME
from planc.strict_json import loads

_MAX_MANIFEST_BYTES = 2**28
"""A million ranks, and ten thousand tensors."""
_MAX_SHOWN = 40


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a committed checkpoint, for the step in the directory's name.

    Raises CorruptCheckpointError. Reads nothing else in the directory.
    """
    return parse_manifest(read_manifest_text(directory), directory=directory)


def parse_manifest(text: str, *, directory: Path) -> Manifest:
    """Parse the text of a manifest that is already read; otherwise as `read_manifest`."""
    content, is_as_sealed = unseal(text)
    try:
        manifest = Manifest.model_validate_json(content)
        # Of two fields with one name pydantic takes the last, another reader may take the first. A manifest
        # exactly as this planc writes it needs no search.
        if manifest.model_dump_json() != content:
            loads(content)
    except ValidationError as error:
        raise _invalid_manifest(directory, error=error, content=content) from error
    except ValueError as error:
        raise CorruptCheckpointError(
            f"{directory / MANIFEST_NAME} is not a manifest: {error}", help=ANOTHER_STEP
        ) from error
    if not is_as_sealed:
        raise CorruptCheckpointError(
            f"{directory / MANIFEST_NAME} has changed since it was saved: its SHA-256 does not match",
            help=ANOTHER_STEP,
        )
    step = step_of(directory)
    if step is not None and step != manifest.step:
        raise CorruptCheckpointError(
            f"{directory / MANIFEST_NAME} is for step {manifest.step}", help=ANOTHER_STEP
        )
    return manifest


def read_manifest_text(directory: Path) -> str:
    """The text of the manifest, not yet validated. Raises CorruptCheckpointError if absent."""
    with storage_errors(f"cannot read {directory}"):
        try:
            with open_beneath(directory, name=MANIFEST_NAME) as stream:
                if os.fstat(stream.fileno()).st_size > _MAX_MANIFEST_BYTES:
                    raise CorruptCheckpointError(
                        f"{directory / MANIFEST_NAME} is larger than a manifest can be", help=ANOTHER_STEP
                    )
                return stream.read().decode()
        except FileNotFoundError as error:
            raise CorruptCheckpointError(
                f"{directory} has no {MANIFEST_NAME}", help="pass a `step-N` directory that planc has saved"
            ) from error
        except UnicodeDecodeError as error:
            raise CorruptCheckpointError(
                f"{directory / MANIFEST_NAME} is not UTF-8 text", help=ANOTHER_STEP
            ) from error


def verify(directory: Path) -> tuple[Problem, ...]:
    """Everything wrong with a checkpoint; empty if it may be loaded. Unlisted files are not read.

    CheckpointStorageError for a file that this process can't read, though it may be sound.
    """
    try:
        manifest = read_manifest(directory)
    except CheckpointError as error:
        return (Problem(MANIFEST_NAME, error.message),)
    return (
        *verify_plan(directory, manifest=manifest),
        *verify_parts(directory, manifest=manifest, parts=shares(manifest, rank=0, world_size=1)),
    )


def verify_plan(directory: Path, *, manifest: Manifest) -> tuple[Problem, ...]:
    """The problem of the plan in the checkpoint, if there are a plan and a problem."""
    try:
        read_plan_text(directory, manifest=manifest)
    except CheckpointError as error:
        if isinstance(error.__cause__, OSError):
            refuse_unread(error.__cause__, directory / PLAN_NAME)
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
            raise CorruptCheckpointError(f"{directory / PLAN_NAME} {problem}", help=ANOTHER_STEP)
        stream.seek(0)
        try:
            return stream.read().decode()
        except UnicodeDecodeError as error:
            text = f"{directory / PLAN_NAME} is not UTF-8 text"
            raise CorruptCheckpointError(text, help=ANOTHER_STEP) from error


def verify_parts(
    directory: Path, *, manifest: Manifest, parts: Iterable[Share], taker: Taker | None = None
) -> tuple[Problem, ...]:
    """The problems of ranks' parts: ranks share the hashing by each passing its `shares`."""
    return tuple(
        problem
        for share in parts
        for problem in verify_part(directory, manifest=manifest, share=share, taker=taker)
    )


def _content_problem(stream: BufferedReader, *, expected: FileEntry) -> str | None:
    size_bytes = os.fstat(stream.fileno()).st_size
    if size_bytes != expected.size_bytes:
        return f"holds {size_bytes} bytes, but {expected.size_bytes} were saved"
    if hashlib.file_digest(stream, "sha256").hexdigest() != expected.sha256:
        return "its SHA-256 differs from the one that was saved"
    return None


def _invalid_manifest(directory: Path, *, error: ValidationError, content: str) -> CorruptCheckpointError:
    errors = error.errors(include_url=False, include_context=False)
    first = errors[0]
    place = ".".join(str(part) for part in first["loc"])
    # Another format may have other fields too.
    if any(one["loc"] == ("format_version",) for one in errors):
        return _other_format(directory, content=content)
    return CorruptCheckpointError(
        f"{directory / MANIFEST_NAME} is not a manifest: {place + ': ' if place else ''}{first['msg']}",
        help=ANOTHER_STEP,
    )


def _other_format(directory: Path, *, content: str) -> CorruptCheckpointError:
    try:
        fields = loads(content)
        format_version, version = (
            str(fields[name])[:_MAX_SHOWN] for name in ("format_version", "planc_version")
        )
    except (ValueError, KeyError, TypeError):
        return CorruptCheckpointError(
            f"{directory / MANIFEST_NAME} is not in format {FORMAT_VERSION}", help=ANOTHER_STEP
        )
    return CorruptCheckpointError(
        f"{directory / MANIFEST_NAME} is in format {format_version}, written by planc {version}; "
        f"this planc reads format {FORMAT_VERSION}",
        help="load it with the planc version that saved it, and convert it: planc checkpoint convert --dcp",
    )
