"""What differs from the plan that saved a checkpoint: in words, and refused where it changes training."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from planc.cli.versions.saved_plans import NoSavedPlanError, saved_plan
from planc.graph.artifact import graph_of
from planc.graph.graph import Graph, plan_hash
from planc.graph.ops import ResumeCheckpoint
from planc.runtime.checkpoint_format.errors import CheckpointError
from planc.runtime.checkpoint_format.layout import committed_steps, latest, step_directory
from planc.runtime.checkpoint_format.manifest import Manifest
from planc.runtime.checkpoint_format.verify import read_manifest
from planc.runtime.errors import RunError
from planc.runtime.run_directory.run_files import CHECKPOINTS


def changes_since_saved(graph: Graph, folder: Path, *, allowed: Collection[str]) -> tuple[str, ...]:
    """One line a difference from the plan that saved what this run goes on from; none for the same plan.

    RunError where what is trained would change, unless the change is among `allowed`.
    """
    _require_names(allowed)
    try:
        directory, manifest = _saved(graph, folder / CHECKPOINTS)
        if manifest is None or manifest.plan_hash == plan_hash(graph):
            return ()
        try:
            old = graph_of(saved_plan(directory, manifest).artifact)
        except NoSavedPlanError as error:
            return (f"the plan that saved it, {manifest.plan_hash[:12]}, {error}: what differs is not known",)
    except CheckpointError:
        # To resume is refused for it, by whoever reads the whole checkpoint.
        return ()
    # Reached lazily: a run that goes on with its own plan needs no front end.
    from planc.diff.difference import State
    from planc.diff.verdict import verdict

    found = verdict(old, graph, step=manifest.step, allowed=allowed)
    if found.state is State.REFUSED:
        raise RunError(found.reason, help=found.help)
    return found.notes


def refuse_old_checkpoints(graph: Graph, checkpoints: Path) -> None:
    """RunError if a run that starts anew would meet an earlier run's checkpoints."""
    resumes = any(isinstance(op, ResumeCheckpoint) for op in graph.setup)
    if resumes or not committed_steps(checkpoints):
        return
    # Reached lazily, as above.
    from planc.diff.difference import State
    from planc.diff.verdict import without_resuming

    found = without_resuming(graph)
    if found is not None and found.state is State.REFUSED:
        raise RunError(f"{checkpoints}: {found.reason}", help=found.help)


def _require_names(allowed: Collection[str]) -> None:
    if not allowed:
        return
    # Reached lazily: without it, a run needs no front end to go on.
    from planc.diff.resume import CHANGES_TO_ALLOW

    for name in allowed:
        if name not in CHANGES_TO_ALLOW:
            names = ", ".join(CHANGES_TO_ALLOW)
            raise RunError(f"--allow-change {name!r} names no change", help=f"there are: {names}")


def _saved(graph: Graph, checkpoints: Path) -> tuple[Path, Manifest | None]:
    """The newest checkpoint and its manifest; None where nothing is to be compared."""
    if not any(isinstance(op, ResumeCheckpoint) for op in graph.setup):
        return checkpoints, None
    step = latest(checkpoints)
    if step is None:
        return checkpoints, None
    directory = step_directory(checkpoints, step=step)
    return directory, read_manifest(directory)
