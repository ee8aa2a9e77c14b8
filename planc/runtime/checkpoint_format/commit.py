"""Commit a checkpoint by rename, and delete old ones. One process does this for all ranks.

    begin        step-N.tmp/                     any leftover of a dead save is removed
    (the ranks)  step-N.tmp/rank-*.safetensors   each written and fsynced by its rank
                 step-N.tmp/rank-*.json          the hashes of its chunks, also fsynced
    finish       step-N.tmp/plan.json            the compiled plan that saves it, fsynced
                 step-N.tmp/manifest.json        last, fsynced; then the directory is fsynced
                 step-N/                         the rename commits; then the root is fsynced

If a process dies at any point, `step-N` is either absent or complete.
"""

from __future__ import annotations

import os
from pathlib import Path

from planc.runtime.checkpoint_format.errors import CheckpointError, CheckpointStorageError, storage_errors
from planc.runtime.checkpoint_format.layout import (
    committed_steps,
    deleted_directory,
    leftovers,
    step_directory,
    temporary_directory,
)
from planc.runtime.checkpoint_format.manifest import MANIFEST_NAME, Manifest
from planc.runtime.checkpoint_format.part import part_name, shard_name
from planc.runtime.checkpoint_format.part_files import write_synced
from planc.runtime.checkpoint_format.records import seal
from planc.runtime.run_directory.plain_files import remove
from planc.runtime.run_directory.run_files import PLAN_NAME

_MAX_LISTED = 20


def begin(root: Path, *, step: int) -> Path:
    """The new, empty directory to write `step` into. CheckpointError if the step is committed already."""
    _refuse_existing(step_directory(root, step=step))
    temporary = temporary_directory(root, step=step)
    with storage_errors(f"cannot begin a checkpoint in {root}"):
        make_durable(root)
        remove(temporary)
        temporary.mkdir()
    return temporary


def finish(temporary: Path, *, manifest: Manifest, plan: str | None = None) -> Path:
    """The committed directory: the manifest written last, everything synced, then renamed.

    `plan` is the compiled plan that saves it; None without one.
    """
    root = temporary.parent
    committed = step_directory(root, step=manifest.step)
    assert temporary == temporary_directory(root, step=manifest.step)
    with storage_errors(f"cannot commit {committed}"):
        _refuse_absent_files(temporary, manifest=manifest)
        if plan is not None:
            manifest = manifest.model_copy(update={"plan": write_synced(temporary / PLAN_NAME, plan)})
        write_synced(temporary / MANIFEST_NAME, seal(manifest))
        fsync_directory(temporary)
        # rename(2) would replace an empty directory.
        _refuse_existing(committed)
        temporary.rename(committed)
        fsync_directory(root)
    return committed


def abandon(root: Path, *, step: int) -> None:
    """Remove what a failed save of `step` has written."""
    with storage_errors(f"cannot remove the failed checkpoint of step {step} in {root}"):
        remove(temporary_directory(root, step=step))


def prune(root: Path, *, keep_last: int) -> tuple[int, ...]:
    """The steps deleted: all but the `keep_last` (1 or more) highest. Removes leftovers of dead saves too."""
    if keep_last < 1:
        raise CheckpointError(f"keep_last is {keep_last}", help="keep at least 1 checkpoint")
    doomed = committed_steps(root)[:-keep_last]
    with storage_errors(f"cannot delete old checkpoints in {root}"):
        for step in doomed:
            deleted = deleted_directory(root, step=step)
            remove(deleted)
            step_directory(root, step=step).rename(deleted)
        if doomed:
            fsync_directory(root)
        for leftover in leftovers(root):
            remove(leftover)
    return doomed


def fsync_directory(directory: Path) -> None:
    """Make the names in a directory durable: fsync of a file does not cover its name.

    Windows can't open directories; its file systems journal changes of names.
    """
    if os.name == "nt":
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_durable(directory: Path) -> None:
    """Create a directory and its missing parents, each synced into its own parent."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        fsync_directory(path.parent)


def _refuse_existing(committed: Path) -> None:
    with storage_errors(f"cannot check {committed}"):
        exists = os.path.lexists(committed)
    if exists:
        raise CheckpointError(
            f"{committed} already exists, and a checkpoint is never overwritten",
            help="resume from it, choose another directory, or move it away",
        )


def _refuse_absent_files(directory: Path, *, manifest: Manifest) -> None:
    with os.scandir(directory) as entries:
        found = {entry.name for entry in entries if entry.is_file(follow_symlinks=False)}
    wanted = [name for rank in manifest.writing_ranks() for name in (part_name(rank), shard_name(rank))]
    absent = [name for name in wanted if name not in found]
    if absent:
        more = f" and {len(absent) - _MAX_LISTED} more" if len(absent) > _MAX_LISTED else ""
        raise CheckpointStorageError(
            f"rank 0 does not see {', '.join(absent[:_MAX_LISTED])}{more} in {directory}, "
            "which other ranks have written",
            help="save to a file system that all nodes share",
        )
