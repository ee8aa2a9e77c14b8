"""Paths of checkpoints: `root/step-N`, committed by the rename that gives the directory this name."""

from __future__ import annotations

import os
import re
from pathlib import Path

from planc.runtime.checkpoint_format.errors import storage_errors
from planc.runtime.files.best_effort import retried
from planc.runtime.files.plain_files import kind_of
from planc.runtime.files.run_files import CHECKPOINTS

_STEP = re.compile(r"step-(0|[1-9][0-9]{0,17})")
_LEFTOVER = re.compile(r"step-(0|[1-9][0-9]{0,17})(?:\.deleted(?:-[1-9][0-9]{0,8})?)?\.tmp")


def step_directory(root: Path, *, step: int) -> Path:
    """The directory of a committed step."""
    return root / f"step-{step}"


def temporary_directory(root: Path, *, step: int) -> Path:
    """The directory in which a step is written before it is committed."""
    return root / f"step-{step}.tmp"


def deleted_directory(directory: Path, *, number: int = 0) -> Path:
    """The names under which a step, or its temporary directory, is deleted: none looks committed."""
    name = directory.name.removesuffix(".tmp")
    return directory.with_name(f"{name}.deleted{f'-{number}' if number else ''}.tmp")


def step_of(directory: Path) -> int | None:
    """The step that a directory's name commits; None for any other name."""
    match = _STEP.fullmatch(directory.name)
    return int(match[1]) if match else None


def is_leftover(path: Path) -> bool:
    """Whether the name is one under which a step is written or deleted."""
    return _LEFTOVER.fullmatch(path.name) is not None


def committed_steps(root: Path) -> tuple[int, ...]:
    """Committed steps, lowest first; none if the root does not exist yet."""
    with storage_errors(f"cannot list {root}"):
        try:
            entries = os.scandir(root)
        except FileNotFoundError:
            return ()
        with entries:
            directories = [Path(entry) for entry in entries if entry.is_dir(follow_symlinks=False)]
    return tuple(sorted(step for directory in directories if (step := step_of(directory)) is not None))


def strange_steps(root: Path) -> tuple[tuple[Path, str], ...]:
    """Every entry that is named like a checkpoint but is not a directory, and its kind."""
    with storage_errors(f"cannot list {root}"):
        kinds = ((root / name, kind_of(root / name)) for name in sorted(os.listdir(root)))
        return tuple(
            (path, kind) for path, kind in kinds if kind and kind != "directory" and step_of(path) is not None
        )


def latest(root: Path) -> int | None:
    """The highest committed step."""
    return max(committed_steps(root), default=None)


def newest_in(folder: Path) -> Path | None:
    """The checkpoint that a directory is, or the newest one of a run directory; None if it is neither."""
    if not retried(folder.is_dir):
        return None
    if step_of(folder.resolve()) is not None:
        return folder
    step = latest(folder / CHECKPOINTS)
    return None if step is None else step_directory(folder / CHECKPOINTS, step=step)


def leftovers(root: Path) -> tuple[Path, ...]:
    """Return directories that dead saves and deletions have left, of steps below the latest one.

    A save of a higher step may be under way.
    """
    newest = latest(root)
    with storage_errors(f"cannot list {root}"), os.scandir(root) as entries:
        matches = [match for entry in entries if (match := _LEFTOVER.fullmatch(entry.name))]
    return tuple(root / match[0] for match in matches if newest is not None and int(match[1]) < newest)
