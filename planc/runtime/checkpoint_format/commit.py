"""Commit a checkpoint by rename, and delete old ones. One process does this for all ranks.

    begin        step-N.tmp/                     any leftover of a dead save is renamed, then removed
    (the ranks)  step-N.tmp/rank-*.safetensors   each written and fsynced by its rank
                 step-N.tmp/rank-*.json          the hashes of its chunks, also fsynced
    finish       step-N.tmp/plan.json            the compiled plan that saves it, fsynced
                 step-N.tmp/manifest.json        last, fsynced; then the directory is fsynced
                 step-N/                         the rename commits; then the root is fsynced

If a process dies at any point, `step-N` is either absent or complete. What can't be deleted stays behind
under a name that no checkpoint has: on a network file system, that is a file that another program has open.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from itertools import count
from pathlib import Path

from planc.runtime.checkpoint_format.best import KeepBest
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
from planc.runtime.checkpoint_format.verify import read_manifest
from planc.runtime.files.best_effort import BestEffort, retried
from planc.runtime.files.plain_files import remove
from planc.runtime.files.run_files import PLAN_NAME

_MAX_LISTED = 20


def begin(root: Path, *, step: int, effort: BestEffort | None = None) -> Path:
    """The new, empty directory to write `step` into. CheckpointError if the step is committed already."""
    _refuse_existing(step_directory(root, step=step))
    temporary = temporary_directory(root, step=step)
    with storage_errors(f"cannot begin a checkpoint in {root}"):
        make_durable(root)
        delete(temporary, effort=effort or BestEffort())
        # The server may have made it already, and the answer been lost.
        retried(lambda: temporary.mkdir(exist_ok=True))
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
        rename(temporary, committed)
        fsync_directory(root)
    return committed


def abandon(root: Path, *, step: int) -> None:
    """Remove what a failed save of `step` has written."""
    with storage_errors(f"cannot remove the failed checkpoint of step {step} in {root}"):
        remove(temporary_directory(root, step=step))


def prune(
    root: Path, *, keep_last: int, keep_best: Sequence[KeepBest] = (), effort: BestEffort | None = None
) -> tuple[int, ...]:
    """The steps deleted: all but the `keep_last` (1 or more) highest, and the best of each evaluation.

    Removes leftovers of dead saves too. What can't be deleted is tried again by the next call.
    """
    if keep_last < 1:
        raise CheckpointError(f"keep_last is {keep_last}", help="keep at least 1 checkpoint")
    effort, listing = effort or BestEffort(), (OSError, CheckpointStorageError)
    steps = effort.attempt(f"list {root}", lambda: committed_steps(root), errors=listing) or ()
    doomed = steps[:-keep_last]
    if doomed and keep_best:
        kept = _kept_as_best(root, steps, keep_best, effort)
        doomed = tuple(step for step in doomed if step not in kept)
    for step in doomed:
        directory = step_directory(root, step=step)
        effort.attempt(f"delete {directory}", partial(_hide, directory))
    if doomed:
        effort.attempt(f"sync {root}", lambda: fsync_directory(root))
    for leftover in effort.attempt(f"list {root}", lambda: leftovers(root), errors=listing) or ():
        effort.attempt(f"delete {leftover}", partial(remove, leftover))
    return doomed


def _kept_as_best(
    root: Path, steps: Sequence[int], keep_best: Sequence[KeepBest], effort: BestEffort
) -> frozenset[int]:
    """The steps with the lowest losses, and those whose manifest can't be read: their loss is not known."""
    manifests = {
        step: effort.attempt(
            f"read the manifest of {step_directory(root, step=step)}",
            partial(read_manifest, step_directory(root, step=step)),
            errors=(OSError, CheckpointError),
        )
        for step in steps
    }
    unread = (step for step, manifest in manifests.items() if manifest is None)
    read = [manifest for manifest in manifests.values() if manifest is not None]
    return frozenset((*unread, *(step for best in keep_best for step in best.best(read))))


def rename(source: Path, target: Path) -> None:
    """Rename to a name that is free. If the server did it and its answer was lost, that is a success."""
    try:
        source.rename(target)
    except FileNotFoundError:
        if os.path.lexists(source) or not os.path.lexists(target):
            raise


def delete(directory: Path, *, effort: BestEffort) -> None:
    """Free a name that may be taken at once, then delete what had it. OSError if the name can't be freed."""
    if not os.path.lexists(directory):
        return
    hidden = retried(partial(_hide, directory))
    effort.attempt(f"delete {hidden}", partial(remove, hidden))


def _hide(directory: Path) -> Path:
    """Rename to a name under which a directory is deleted, and return that."""
    hidden = (deleted_directory(directory, number=number) for number in count())
    target = next(one for one in hidden if not os.path.lexists(one))
    try:
        # Not asked for first: `lexists` is false, too, where a server does not answer.
        rename(directory, target)
    except FileNotFoundError:
        if os.path.lexists(directory):
            raise
    return target


def fsync_directory(directory: Path) -> None:
    """Make the names in a directory durable: fsync of a file does not cover its name.

    Windows can't open directories; its file systems journal changes of names.
    """
    if os.name == "nt":
        return
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    descriptor = retried(lambda: os.open(directory, flags))
    # Never tried again: after an error, the system may have forgotten what it could not write.
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_durable(directory: Path) -> None:
    """Create a directory and its missing parents, each synced into its own parent."""
    missing = retried(lambda: [path for path in (directory, *directory.parents) if not path.exists()])
    for path in reversed(missing):
        retried(partial(path.mkdir, exist_ok=True))
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
