"""Entries of a run directory that would make a save fail after training, found before the first step."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from planc.graph.graph import Graph
from planc.graph.ops import ExportAdapter, ExportHf, ResumeCheckpoint, SaveCheckpoint
from planc.runtime.checkpoint_format.errors import CheckpointError
from planc.runtime.checkpoint_format.layout import committed_steps, is_leftover, step_of
from planc.runtime.files.best_effort import retried
from planc.runtime.files.plain_files import kind_of
from planc.runtime.files.run_files import CHECKPOINTS, EXPORT
from planc.runtime.run_directory.export_folder import exported_step


@dataclass(frozen=True, slots=True)
class Obstacle:
    """An entry of a run directory that a run can't use, the reason, and the help."""

    path: Path
    text: str
    help: str

    def __str__(self) -> str:
        return f"{self.path} {self.text}"


def obstacles(folder: Path, graph: Graph) -> tuple[Obstacle, ...]:
    """Find what would keep a run of `graph` in `folder` from resuming, saving or exporting. Read-only."""
    saves = [op for op in graph.save if isinstance(op, SaveCheckpoint)]
    resumes = any(isinstance(op, ResumeCheckpoint) for op in graph.setup)
    obstacles: list[Obstacle] = []
    if saves or resumes:
        prunes = any(op.keep_last is not None for op in saves)
        obstacles += _of_checkpoints(folder / CHECKPOINTS, prunes=prunes)
    names = [op.op.removeprefix("export.") for op in graph.save if isinstance(op, ExportHf | ExportAdapter)]
    if names:
        obstacles += _of_exports(folder / EXPORT, names)
    return tuple(obstacles)


def num_kept(folder: Path) -> int:
    """The number of committed checkpoints of a run; 0 if `obstacles` reports that they can't be listed."""
    try:
        return len(committed_steps(folder / CHECKPOINTS))
    except CheckpointError:
        return 0


def _of_checkpoints(root: Path, *, prunes: bool) -> Iterator[Obstacle]:
    if not _is_there(root):
        return
    if obstacle := _unusable_directory(root):
        yield obstacle
        return
    for name in sorted(os.listdir(root)):
        path = root / name
        if step_of(path) is not None:
            yield from _of_step(path, prunes=prunes)
        elif is_leftover(path) and kind_of(path) == "directory" and not _is_changeable(path):
            yield Obstacle(path, "is left over from a save, and this user can't delete it", "delete it")


def _of_step(path: Path, *, prunes: bool) -> Iterator[Obstacle]:
    kind = kind_of(path)
    if kind == "symbolic link":
        help = "replace the link with the checkpoint that it points to, or remove it"
        yield Obstacle(path, "is a symbolic link, but a checkpoint must be a plain directory", help)
    elif kind != "directory":
        yield Obstacle(path, f"is a {kind}, but a checkpoint must be a plain directory", "move it away")
    elif prunes and not _is_changeable(path):
        help = "give this user permission, move it away, or leave out checkpoint.keep_last"
        yield Obstacle(path, "can't be deleted by this user, as checkpoint.keep_last requires", help)


def _of_exports(root: Path, names: Sequence[str]) -> Iterator[Obstacle]:
    if not _is_there(root):
        return
    if obstacle := _unusable_directory(root):
        yield obstacle
        return
    for path in (root / name for name in names):
        try:
            exported_step(path)
        except CheckpointError:
            help = "move it away, or choose another directory with --run-dir"
            yield Obstacle(path, "is not an export of a run, and the run would replace it", help)


def _is_there(path: Path) -> bool:
    return kind_of(path) is not None


def _unusable_directory(path: Path) -> Obstacle | None:
    """The obstacle, unless `path` is a plain directory in which this user may create and list entries."""
    kind = kind_of(path)
    if kind != "directory":
        text = f"is a {kind}, not a plain directory"
        return Obstacle(
            path, text, "move it away; to use another disk, choose a directory there with --run-dir"
        )
    try:
        retried(partial(_use, path))
    except OSError as error:
        help = "give this user permission, or choose another directory with --run-dir"
        return Obstacle(path, f"can't be used: {error.strerror}", help)
    return None


def _use(directory: Path) -> None:
    os.listdir(directory)
    # Without a name, so nobody ever sees it; only a write reveals quotas and read-only mounts.
    with tempfile.TemporaryFile(dir=directory):
        pass


def _is_changeable(directory: Path) -> bool:
    """Whether this user may delete what is in a directory."""
    return os.access(directory, os.R_OK | os.W_OK | os.X_OK)
