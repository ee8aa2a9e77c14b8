"""The checkpoint of another run that a run starts from. It is only read."""

from __future__ import annotations

from pathlib import Path

from planc.runtime.checkpoint_format.errors import CheckpointError
from planc.runtime.checkpoint_format.hashing import sha256
from planc.runtime.checkpoint_format.layout import committed_steps, newest_in
from planc.runtime.checkpoint_format.manifest import Origin
from planc.runtime.checkpoint_format.verify import parse_manifest, read_manifest_text

_MAX_LISTED = 20


def source_in(path: str, *, base: Path, run: Path) -> Path:
    """The checkpoint from which a plan starts a run in the directory `run`: it names it, or another run.

    CheckpointError if there is none, or if it is the run's own.
    """
    refuse_own(path, base=base, run=run)
    named = base / path
    source = newest_in(named)
    if source is None:
        steps = committed_steps(named.parent)[-_MAX_LISTED:]
        near = f"; {named.parent} has {', '.join(f'step-{step}' for step in steps)}" if steps else ""
        raise CheckpointError(
            f"`{path}` is not a checkpoint, and not the directory of a run that has one{near}",
            help="name a directory `step-N`, or a run directory",
        )
    return source


def refuse_own(path: str, *, base: Path, run: Path) -> None:
    """CheckpointError if a path leads into the directory of the run that it is written for."""
    if (base / path).resolve().is_relative_to(run.resolve()):
        raise CheckpointError(
            f"`{path}` is in this run's own directory, {run}",
            help="write `resume = latest` to continue this run, or start a new run with another --run-dir",
        )


def origin_of(directory: Path, *, path: str) -> Origin:
    """The record of a checkpoint that a plan names by `path`, alone or by its run."""
    text = read_manifest_text(directory)
    manifest = parse_manifest(text, directory=directory)
    is_named = Path(path).name == directory.name
    return Origin(
        path=path if is_named else f"{path.rstrip('/')}/{directory.parent.name}/{directory.name}",
        step=manifest.step,
        plan_hash=manifest.plan_hash,
        digest=sha256(text.encode()),
    )
