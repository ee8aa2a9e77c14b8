"""Inputs of `git difftool`: two versions of a plan, or two directories of them, and the plans they affect."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from planc.api import Checked, check_source, read_source
from planc.cli.versions.models import check_at
from planc.cli.versions.trees import (
    HERE,
    Repository,
    Tree,
    included_files,
    is_part,
    repository_here,
    syntax_tree,
    trees_of,
)
from planc.diff.side import Side, side_of
from planc.source import SourceFile

Read = Callable[..., tuple[Side | None, Checked]]
"""Reads a side with `settings` and `world_size`, as `revisions.read_side` does."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two versions of a plan to compare. `because` is the changed file that the plan includes, if any."""

    old_name: str
    new_name: str
    read_old: Read
    read_new: Read
    because: str = ""


def pairs(old: str, new: str, *, path: str) -> Iterator[Pair | str]:
    """The plans to compare if `old` and `new` are versions of the file at `path`, or lines to print instead.

    Without a path they are the directories of `git difftool --dir-diff`. An unchanged plan that includes a
    changed file is compared too, although git does not pass it.
    """
    is_folder = not path and Path(old).is_dir() and Path(new).is_dir()
    repository = repository_here()
    top = repository or Repository(Path.cwd())
    files = _files(Path(old), Path(new)) if is_folder else {top.path(path): (Path(old), Path(new))}
    before, after = (
        _trees({name: both[side] for name, both in files.items()}, top, has_git=repository is not None)
        for side in (0, 1)
    )
    dependents: dict[str, str] = {}
    for name, (old_file, new_file) in files.items():
        here = top.name(name)
        if not _is_there(old_file) or not _is_there(new_file):
            yield f"{here}  is {'deleted' if _is_there(old_file) else 'new'}"
            continue
        if not (is_part(syntax_tree(name, before[0])) and is_part(syntax_tree(name, after[0]))):
            yield Pair(
                f"the old version of {here}",
                f"the new version of {here}",
                partial(_read, before, name, file=old_file),
                partial(_read, after, name, file=new_file),
            )
            dependents.update(dict.fromkeys(_dependents(name, before[0], after[0]), here))
            continue
        found = tuple(_dependents(name, before[0], after[0]))
        dependents.update(dict.fromkeys(found, here))
        if not found:
            yield f"{here}  is not included by any unchanged plan"
    for plan, because in dependents.items():
        here = top.name(plan)
        yield Pair(here, here, partial(_read, before, plan), partial(_read, after, plan), because)


def _files(old: Path, new: Path) -> dict[str, tuple[Path, Path]]:
    """The plans in two directories with the repository's structure."""
    found = {path.relative_to(top).as_posix() for top in (old, new) for path in top.rglob("*.plan")}
    return {name: (old / name, new / name) for name in sorted(found)}


def _is_there(file: Path) -> bool:
    return str(file) != os.devnull and file.exists()


def _trees(files: dict[str, Path], repository: Repository, *, has_git: bool) -> tuple[Tree, ...]:
    there = {name: file for name, file in files.items() if file.is_file()}
    if has_git and there:
        return trees_of(there, repository)
    texts = {name: source.text for name, file in there.items() if (source := read_source(file)[0])}
    return (Tree(repository, None, texts, HERE),)


def _dependents(path: str, before: Tree, after: Tree) -> Iterator[str]:
    """The plans that include a file and have the same text in both trees."""
    for plan in after.plans() if repository_here() else ():
        if plan == path or path not in included_files(plan, after) or is_part(syntax_tree(plan, after)):
            continue
        if before.text(plan) == after.text(plan):
            yield plan


def _read(
    trees: tuple[Tree, ...],
    path: str,
    *,
    settings: Sequence[SourceFile],
    world_size: int | None,
    file: Path | None = None,
) -> tuple[Side | None, Checked]:
    """Read a plan from the first tree in which it is complete; `file` has its text if git passed one."""
    name = trees[0].repository.name(path)
    text = trees[0].text(path) or ""
    source, problems = read_source(file) if file else (SourceFile(name, text), ())
    if source is None:
        return None, Checked({}, problems)
    source = SourceFile(name, source.text)
    found: list[Checked] = []
    for tree in trees:
        checked, note = _check(tree, source, path, settings=settings, world_size=world_size)
        side = side_of(checked, name=name)
        if side is not None:
            return replace(side, note="; ".join(filter(None, (tree.note, note)))), checked
        found.append(checked)
    return None, found[0]


def _check(
    tree: Tree, source: SourceFile, path: str, *, settings: Sequence[SourceFile], world_size: int | None
) -> tuple[Checked, str]:
    """Check a plan with the included files and the model of a tree; the note is that of `check_at`."""
    base, load = Path(source.name).parent, tree.files(path)
    if tree.revision is None:
        return check_source(source, base=base, settings=settings, world_size=world_size, load=load), ""
    return check_at(tree.revision, source, base=base, load=load, settings=settings, world_size=world_size)
