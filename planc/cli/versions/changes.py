"""Plans of a repository that differ from a revision, in their text, in included files or in their model."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from planc.api import local_files, read_source
from planc.cli.support.exits import UsageError
from planc.cli.versions.difftool import PLANS, includes_of, is_part
from planc.cli.versions.git import git, git_paths, top_folder
from planc.cli.versions.models import MODEL_FILES, model_files, model_of
from planc.source import SourceFile
from planc.syntax import ast
from planc.syntax.parse import parse


@dataclass(frozen=True, slots=True)
class ChangedPlan:
    """A plan that a change affects. Paths start at the top of the repository.

    `old` is None for a new plan, `new` for a deleted one. `because` are changed files that it includes, and
    those of its model.
    `is_included` is true if another plan includes it, so it may not be a complete plan.
    """

    old: str | None
    new: str | None
    because: tuple[str, ...] = ()
    is_included: bool = False

    @property
    def path(self) -> str:
        return self.new or self.old or ""


def fork_point(base: str) -> str:
    """The short name of the merge base of `base` and HEAD; later commits of `base` do not count."""
    base_commit, head = _commit(base), _commit("HEAD")
    try:
        found = git("merge-base", base_commit, head).decode().strip()
    except UsageError as error:
        text = f"{base} and HEAD have no common commit in this clone: fetch the full history (fetch-depth: 0)"
        raise UsageError(text) from error
    return git("rev-parse", "--short", found).decode().strip()


def _commit(revision: str) -> str:
    try:
        return git("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}").decode().strip()
    except UsageError as error:
        raise UsageError(f"{revision} is not a commit in this clone ({error})") from error


def changed_plans(revision: str) -> tuple[ChangedPlan, ...]:
    """Tracked plans of the working tree that differ from `revision`, and deleted ones.

    Presets and bases are listed under the plans that include them.
    """
    renames = dict(_changed_files(revision))
    top = top_folder()
    listed = git_paths("ls-files", "-z", "--full-name", "--", PLANS)
    present = sorted({path for path in listed if path and (top / path).is_file()})
    _require_inside(top, present)
    trees = {path: _tree(top, path) for path in present}
    includes = {path: _includes(top, path, tree) for path, tree in trees.items() if tree is not None}
    _require_inside(top, sorted(frozenset().union(*includes.values())))
    changed = {path for pair in renames.items() for path in pair if path}
    included = frozenset(path for paths in includes.values() for path in paths)
    because = {path: tuple(sorted(paths & changed)) for path, paths in includes.items()}
    if models := _changed_models(revision):
        for path, tree in trees.items():
            if tree is not None and not is_part(tree):
                because[path] += tuple(file for file in _model_files(top, path, tree) if file in models)
    edited = [
        ChangedPlan(renames.get(path, path), path, because.get(path, ()), path in included)
        for path in present
        if path in renames or because.get(path)
        if not is_part(trees[path])
    ]
    gone = [ChangedPlan(old, None) for new, old in _gone(renames, present)]
    return tuple(sorted((*edited, *gone), key=lambda plan: plan.path))


def _require_inside(top: Path, paths: Sequence[str]) -> None:
    """UsageError for a file outside of the repository, or a link to one: a comment would quote it."""
    root = top.resolve()
    for path in paths:
        if not (root / path).resolve().is_relative_to(root):
            what = "is a link out of" if (root / path).is_symlink() else "is outside of"
            raise UsageError(f"{path} {what} the repository: a review reads only what the branch holds")


def _changed_files(revision: str) -> Iterator[tuple[str, str | None]]:
    """(path, path in the revision); the second is None for a new file. A deleted file has its own path."""
    words = iter(git_paths("diff", "--name-status", "-z", "--find-renames", revision, "--", PLANS))
    for status in words:
        if not status:
            return
        path = next(words)
        if status.startswith("R"):
            yield next(words), path
        else:
            yield path, None if status == "A" else path


def _changed_models(revision: str) -> frozenset[str]:
    """Changed files that have the name of a model's file."""
    patterns = [f":(top)*{name}" for name in MODEL_FILES]
    listed = git_paths("diff", "--name-only", "-z", "--no-renames", revision, "--", *patterns)
    return frozenset(path for path in listed if posixpath.basename(path) in MODEL_FILES)


def _model_files(top: Path, path: str, tree: ast.PlanFile) -> tuple[str, ...]:
    folder = (top / path).parent
    return model_files(model_of(tree, load=local_files(folder, plan=path)), base=folder, top=top)


def _gone(renames: Mapping[str, str | None], present: list[str]) -> Iterator[tuple[str, str]]:
    for new, old in renames.items():
        if old is not None and new not in present:
            yield new, old


def _tree(top: Path, path: str) -> ast.PlanFile | None:
    """None for a file that does not parse."""
    source, _ = read_source(top / path)
    return parse(SourceFile(path, source.text))[0] if source else None


def _includes(top: Path, path: str, tree: ast.PlanFile) -> frozenset[str]:
    return includes_of(tree, path, load=local_files((top / path).parent, plan=path))


def from_here(path: str, *, top: Path) -> str:
    """Convert a path from the repository's top to one from the current directory, with forward slashes."""
    return Path(os.path.relpath(top.resolve() / path, Path.cwd().resolve())).as_posix()
