"""OLD and NEW of `planc diff`: plans, artifacts, other git revisions' plans, runs and checkpoints."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from planc.api import Checked, check_source, read_source
from planc.cli.support.count_sequences import count_known
from planc.cli.support.exits import UsageError
from planc.cli.support.plans import announce_probe
from planc.cli.versions.git import git, top_folder
from planc.cli.versions.models import ModelsAt, check_at, models_at
from planc.cli.versions.saved_plans import NoSavedPlanError, SavedPlan, saved_plan
from planc.diagnostics import Diagnostic
from planc.diff.difference import Verdict
from planc.diff.side import Side, side_of
from planc.diff.verdict import judge
from planc.graph.artifact import Artifact, ArtifactError, graph_of, load
from planc.hub.user_dirs import cache_dir
from planc.inventory.adapters import with_adapters
from planc.inventory.files import InventoryError
from planc.inventory.known import KnownModels
from planc.inventory.schema import Inventory
from planc.plan.codes import CANNOT_INCLUDE
from planc.plan.include import Load
from planc.runtime.checkpoint_format.errors import CheckpointError
from planc.runtime.checkpoint_format.layout import newest_in, step_of
from planc.runtime.checkpoint_format.verify import read_manifest
from planc.runtime.files.plain_files import read_utf8
from planc.runtime.files.run_files import MAX_PLAN_BYTES, PLAN_NAME
from planc.source import SourceFile, Span

GIT_PREFIX = "git:"


def read_side(
    name: str, *, settings: Sequence[SourceFile], world_size: int | None
) -> tuple[Side | None, Checked]:
    """The side that `name` names and its findings; None for a plan with errors that prevent a comparison.

    UsageError for errors of git, the artifact reader or the checkpoint reader.
    """
    if os.path.isdir(name):
        return _stored(Path(name), settings=settings), Checked({}, ())
    if name.startswith(GIT_PREFIX):
        return _at_revision(name, settings=settings, world_size=world_size)
    path = Path(name)
    source, problems = read_source(path)
    if source is None:
        return None, Checked({}, problems)
    if _is_artifact(source):
        return _artifact(source, base=path.parent, settings=settings), Checked({}, ())
    checked = check_source(
        source,
        base=path.parent,
        settings=settings,
        world_size=world_size,
        on_probe=announce_probe,
        count=count_known,
    )
    return side_of(checked, name=name), checked


def _at_revision(
    name: str, *, settings: Sequence[SourceFile], world_size: int | None
) -> tuple[Side | None, Checked]:
    """Read `git:REVISION:PATH` as `read_side` does: included files and the model are the revision's."""
    source, base = _from_git(name)
    revision = name.removeprefix(GIT_PREFIX).partition(":")[0]
    if _is_artifact(source):
        with models_at(revision, base=base) as models:
            return _artifact(source, base=base, settings=settings, models=models), Checked({}, ())
    checked, note = check_at(
        revision, source, base=base, load=_git_files(name), settings=settings, world_size=world_size
    )
    side = side_of(checked, name=name)
    return (replace(side, note=note) if side else None), checked


def _is_artifact(source: SourceFile) -> bool:
    """Whether a text is a compiled plan: no plan starts with a brace, and every artifact does."""
    return source.text.lstrip().startswith("{")


def _artifact(
    source: SourceFile, *, base: Path, settings: Sequence[SourceFile], models: ModelsAt | None = None
) -> Side:
    if settings:
        raise UsageError(f"{source.name} is compiled, so --set can't change it")
    try:
        artifact = load(source.text)
    except ArtifactError as error:
        raise UsageError(f"{source.name}: {error}") from error
    side = Side(source.name, graph_of(artifact))
    inventory = _inventory(artifact, side, base=base, models=models)
    return replace(side, inventory=inventory, note=models.note if models else "")


def _stored(folder: Path, *, settings: Sequence[SourceFile]) -> Side:
    """The plan of a run directory, or the one that saved a checkpoint."""
    if settings:
        raise UsageError(f"{folder} is compiled, so --set can't change it")
    if step_of(folder.resolve()) is not None:
        saved = _saved_by(folder)
        artifact, base = saved.artifact, saved.folder
    else:
        artifact, base = plan_of_run(folder), folder
    side = Side(str(folder), graph_of(artifact))
    return replace(side, inventory=_inventory(artifact, side, base=base))


def plan_of_run(folder: Path) -> Artifact:
    """The plan of a run directory."""
    path = folder / PLAN_NAME
    try:
        return load(read_utf8(path, max_bytes=MAX_PLAN_BYTES))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"{folder} has no readable plan: {path}: {reason}") from error
    except ArtifactError as error:
        raise UsageError(f"{path}: {error}") from error


def checkpoint_in(name: str) -> Path | None:
    """The checkpoint to resume from: `name`, or the newest of a run directory; None without one."""
    try:
        return newest_in(Path(name))
    except CheckpointError as error:
        raise UsageError(f"{name}: {error.message}") from error


def resuming(checkpoint: Path, new: Side) -> Verdict:
    """Whether a run of `new` would resume from a checkpoint, judged like the run by the saved plan."""
    step = step_of(checkpoint.resolve())
    assert step is not None, "a checkpoint's directory is named by its step"
    return judge(graph_of(_saved_by(checkpoint).artifact), new, step=step)


def _saved_by(checkpoint: Path) -> SavedPlan:
    """The plan that saved a checkpoint."""
    try:
        return saved_plan(checkpoint, read_manifest(checkpoint))
    except CheckpointError as error:
        raise UsageError(f"{checkpoint}: {error.message}") from error
    except NoSavedPlanError as error:
        raise UsageError(f"{checkpoint}: the plan that saved it {error}") from error


def _inventory(
    artifact: Artifact, side: Side, *, base: Path, models: ModelsAt | None = None
) -> Inventory | None:
    """The inventory of an artifact's model; None if it is missing, here or in its revision, or changed."""
    known = KnownModels(base / artifact.base, cache_dir(), on_probe=announce_probe)
    if models is not None:
        models.base = base / artifact.base
        known = models.known()
    try:
        inventory = known.get(side.model.path, task=None, classes=side.model.classes)
    except InventoryError:
        return None
    if inventory.config_digest != side.model.config_digest:
        return None
    op = side.graph.adapters
    return inventory if op is None else with_adapters(inventory, frozenset(op.modules), op)


def committed(path: str) -> str:
    """The name of a plan as git's HEAD has it. UsageError for anything but a file."""
    if path.startswith(GIT_PREFIX) or not os.path.isfile(path):
        raise UsageError(f"{path} is not a plan file that git's HEAD could have: name OLD and NEW")
    inside = Path(os.path.relpath(path)).as_posix()
    return f"{GIT_PREFIX}HEAD:{inside if inside.startswith('../') else f'./{inside}'}"


def _from_git(name: str) -> tuple[SourceFile, Path]:
    """The text of `git:REV:PATH`, and the directory in the working tree where its relative paths start."""
    revision, colon, path = name.removeprefix(GIT_PREFIX).partition(":")
    if not colon or not revision or not path or revision.startswith("-"):
        raise UsageError(f"{name}: write git:REVISION:PATH")
    content = git("cat-file", "blob", f"{revision}:{path}")
    # As in git, ./ starts at the current directory, other paths at the top of the working tree.
    is_relative = path.startswith(("./", "../"))
    top = Path() if is_relative else top_folder()
    try:
        return SourceFile(name, content.decode().replace("\r\n", "\n")), (top / path).parent
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8 text") from error


def _git_files(name: str) -> Load:
    """Read files that a plan of another revision includes, from that revision."""
    revision, _, plan = name.rpartition(":")
    start = "./" if plan.startswith("./") else ""

    def load(path: str, span: Span) -> tuple[SourceFile | None, tuple[Diagnostic, ...]]:
        full = posixpath.normpath(posixpath.join(posixpath.dirname(plan), path))
        try:
            return _from_git(f"{revision}:{full if full.startswith('../') else start + full}")[0], ()
        except UsageError as error:
            return None, (CANNOT_INCLUDE.at(span, str(error)),)

    return load
