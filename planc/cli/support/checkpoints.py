"""The checkpoints that a command line names."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

from planc.cli.support.exits import UsageError
from planc.runtime.checkpoint_format.layout import committed_steps, step_directory, step_of

CHECKPOINT = "a checkpoint (`step-N`) or run directory"
"""The help of an argument that names one."""
_MAX_LISTED = 20


def add_weights_argument(parser: ArgumentParser) -> None:
    """Add CHECKPOINT, which may be an export: see `is_export` and `newest_of`."""
    parser.add_argument(
        "checkpoint",
        metavar="CHECKPOINT",
        help="a checkpoint (`step-N`), a run directory for its newest one, or an export",
    )


def root_of(folder: Path) -> Path:
    """The directory of steps: a run's `checkpoints`, or `folder` itself."""
    return folder / "checkpoints" if (folder / "checkpoints").is_dir() else folder


def checkpoints_of(folder: Path) -> tuple[Path, ...]:
    """The named checkpoint, or all checkpoints of the named run; UsageError if there is none."""
    if step_of(folder.resolve()) is not None:
        if not folder.is_dir():
            raise UsageError(_absent(folder))
        return (folder,)
    root = root_of(folder)
    steps = tuple(step_directory(root, step=step) for step in committed_steps(root))
    if not steps:
        raise UsageError(f"no checkpoint found in `{folder}`: pass a `step-N` directory or a run directory")
    return steps


def newest_of(name: str) -> Path:
    """The named checkpoint, or the newest of the named run."""
    return checkpoints_of(Path(name))[-1]


def is_export(folder: Path) -> bool:
    """Whether a directory is a model's, such as an export, and not a run's or a checkpoint."""
    is_planc = step_of(folder.resolve()) is not None or (folder / "checkpoints").is_dir()
    return not is_planc and (folder / "config.json").is_file()


def _absent(folder: Path) -> str:
    steps = committed_steps(folder.resolve().parent)
    others = ", ".join(f"step-{step}" for step in steps[-_MAX_LISTED:])
    return f"no checkpoint `{folder}`; {f'found {others}' if steps else 'the directory has none'}"
