"""Differences from the plan that saved a checkpoint; those that change training are rejected."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from planc.cli.versions.saved_plans import NoSavedPlanError, saved_plan
from planc.graph.artifact import graph_of
from planc.graph.graph import Graph, plan_hash
from planc.graph.ops import BranchRun, ResumeCheckpoint
from planc.runtime.checkpoint_format.errors import CheckpointError, CheckpointStorageError
from planc.runtime.checkpoint_format.layout import committed_steps, newest_in
from planc.runtime.checkpoint_format.manifest import Manifest
from planc.runtime.checkpoint_format.origin import refuse_own, source_in
from planc.runtime.checkpoint_format.verify import read_manifest
from planc.runtime.errors import ExitCode, RunError


def changes_since_saved(
    graph: Graph, folder: Path, *, allowed: Collection[str], base: Path = Path()
) -> tuple[str, ...]:
    """One line for each difference from the plan that saved the checkpoint to resume; none for the same plan.

    `base` is where the plan's relative paths start. RunError for a change of training that is not `allowed`,
    and for a plan that branches from nothing.
    """
    _require_names(allowed)
    try:
        directory, manifest = _saved(graph, folder, base=base)
        if manifest is None or manifest.plan_hash == plan_hash(graph):
            return ()
        try:
            old = graph_of(saved_plan(directory, manifest).artifact)
        except NoSavedPlanError as error:
            return (
                f"the plan that saved it, {manifest.plan_hash[:12]}, {error}, so differences are unknown",
            )
    except CheckpointError:
        # Reading the whole checkpoint reports it.
        return ()
    # Imported lazily: a run that resumes with the same plan needs no front end.
    from planc.diff.difference import State
    from planc.diff.verdict import verdict

    found = verdict(old, graph, step=manifest.step, allowed=allowed)
    if found.state is State.REFUSED:
        raise RunError(found.reason, help=found.help)
    return found.notes


def refuse_old_checkpoints(graph: Graph, checkpoints: Path) -> None:
    """RunError if a run that does not resume finds checkpoints: two runs would write one metrics.jsonl."""
    resumes = any(isinstance(op, ResumeCheckpoint) for op in graph.setup)
    if resumes or not committed_steps(checkpoints):
        return
    # Imported lazily, as above.
    from planc.diff.verdict import without_resuming

    found = without_resuming(graph)
    assert found is not None, "a plan that does not resume has a verdict"
    raise RunError(f"{checkpoints}: {found.reason}", help=found.help)


def _require_names(allowed: Collection[str]) -> None:
    if not allowed:
        return
    # Imported lazily: without --allow-change a run needs no front end to resume.
    from planc.diff.verdict import changes_to_allow

    for name in allowed:
        if name not in changes_to_allow():
            names = ", ".join(changes_to_allow())
            raise RunError(f"unknown change in --allow-change: `{name}`", help=f"write one of {names}")


def _saved(graph: Graph, folder: Path, *, base: Path) -> tuple[Path, Manifest | None]:
    """The checkpoint that a run starts from, and its manifest; None if it starts from none."""
    if not any(isinstance(op, ResumeCheckpoint) for op in graph.setup):
        return folder, None
    directory = newest_in(folder)
    for op in graph.setup:
        if isinstance(op, BranchRun):
            try:
                refuse_own(op.path, base=base, run=folder)
                directory = directory or source_in(op.path, base=base, run=folder)
            except CheckpointError as error:
                code = ExitCode.STORAGE if isinstance(error, CheckpointStorageError) else ExitCode.INPUT
                raise RunError(error.message, code=code, help=error.help, span=op.span) from error
    return (folder, None) if directory is None else (directory, read_manifest(directory))
