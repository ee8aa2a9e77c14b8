"""OLD and NEW of `planc diff`: a plan, a compiled artifact, or a plan in another git revision."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from planc.api import Checked, cache_dir, check_source, read_source
from planc.cli.exits import UsageError
from planc.diff.side import Side, side_of
from planc.graph.artifact import Artifact, ArtifactError, graph_of, load
from planc.inventory.load import InventoryError, load_inventory
from planc.inventory.schema import Inventory
from planc.source import SourceFile

GIT_PREFIX = "git:"


def read_side(
    name: str, *, settings: Sequence[SourceFile], world_size: int | None
) -> tuple[Side | None, Checked]:
    """The side that `name` names, None for a plan too broken to compare; and its findings.

    UsageError for what git or the artifact reader refuses.
    """
    if name.startswith(GIT_PREFIX):
        source, base = _from_git(name)
    else:
        path = Path(name)
        found, problems = read_source(path)
        if found is None:
            return None, Checked({}, problems)
        source, base = found, path.parent
    # No plan starts with a brace, and every artifact does.
    if source.text.lstrip().startswith("{"):
        return _artifact(source, base=base, settings=settings)
    checked = check_source(source, base=base, settings=settings, world_size=world_size)
    return side_of(checked, name=name), checked


def _artifact(source: SourceFile, *, base: Path, settings: Sequence[SourceFile]) -> tuple[Side, Checked]:
    if settings:
        raise UsageError(f"{source.name} is compiled: --set has nothing to work on")
    try:
        artifact = load(source.text)
    except ArtifactError as error:
        raise UsageError(f"{source.name}: {error}") from error
    side = Side(source.name, graph_of(artifact))
    return replace(side, inventory=_inventory(artifact, side, base=base)), Checked({}, ())


def _inventory(artifact: Artifact, side: Side, *, base: Path) -> Inventory | None:
    """The model that an artifact was compiled for; None where it is not here, or not the same any more."""
    try:
        found = load_inventory(base / artifact.base / side.model.path, cache_dir=cache_dir()).inventory
    except InventoryError:
        return None
    return found if found.config_digest == side.model.config_digest else None


def _from_git(name: str) -> tuple[SourceFile, Path]:
    """The text of `git:REV:PATH`, and the folder in the working tree that its relative paths start at."""
    revision, colon, path = name.removeprefix(GIT_PREFIX).partition(":")
    if not colon or not revision or not path or revision.startswith("-"):
        raise UsageError(f"{name}: write git:REVISION:PATH")
    content = _git("cat-file", "blob", f"{revision}:{path}")
    # As git has it: ./ starts at the current folder, anything else at the top of the working tree.
    is_relative = path.startswith(("./", "../"))
    top = Path() if is_relative else Path(_git("rev-parse", "--show-toplevel").decode().rstrip("\n"))
    try:
        return SourceFile(name, content.decode().replace("\r\n", "\n")), (top / path).parent
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8 text") from error


def _git(*arguments: str) -> bytes:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, check=False)
    except FileNotFoundError as error:
        raise UsageError("git is not installed") from error
    if done.returncode != 0:
        raise UsageError(f"git: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout
