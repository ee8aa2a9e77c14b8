"""Inputs of `git difftool`: two versions of a plan, or directories of them, and the files that git passes."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from planc.api import Checked, check_source, local_files, read_source
from planc.cli.support.exits import UsageError
from planc.cli.versions.git import git, git_paths, top_folder
from planc.cli.versions.models import INDEX, check_at, model_files, model_of
from planc.diagnostics import Diagnostic
from planc.diff.side import Side, side_of
from planc.plan.codes import CANNOT_INCLUDE
from planc.plan.include import Load, read_files
from planc.source import SourceFile, Span
from planc.syntax import ast
from planc.syntax.parse import parse

PLANS = ":(top)*.plan"
"""Every plan of a repository, as git writes it."""

HERE = "included files and the model are read from the working tree"
"""The note on a version that no known revision has."""
_MISSING = " missing"
"""The end of git's answer for a missing object."""
_MAX_COMMITS = 10_000
"""Older commits are rarely compared, and searching this many takes a tenth of a second."""
_MAX_TREES = 4
"""The working tree, the index, HEAD, and the newest other commit."""


@dataclass(frozen=True, slots=True)
class Repository:
    """The repository of the current directory. `top` is its working tree."""

    top: Path

    def path(self, file: str | Path) -> str:
        """Convert a path from the current directory to one from the top, with forward slashes."""
        place = Path(file)
        return Path(os.path.relpath(place.parent.resolve() / place.name, self.top.resolve())).as_posix()

    def name(self, path: str) -> str:
        """Convert a path from the top to one from the current directory."""
        return Path(os.path.relpath(self.top.resolve() / path, Path.cwd().resolve())).as_posix()


def repository_here() -> Repository | None:
    """The current directory's repository; None outside one, and without git."""
    try:
        return Repository(top_folder())
    except UsageError:
        return None


@dataclass(frozen=True, slots=True)
class Tree:
    """All files of a repository at one revision. Paths start at its top.

    `revision` is a commit, or `:0` for the index; None for the working tree. `replaced` are texts that
    replace files of the revision. `note` explains the choice of the revision to the reader.
    """

    repository: Repository
    revision: str | None
    replaced: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    def text(self, path: str) -> str | None:
        """The text of a file; None for a missing file, or one that is not text."""
        if path in self.replaced:
            return self.replaced[path]
        if self.revision is None:
            source, _ = read_source(self.repository.top / path)
            return source.text if source else None
        try:
            return git("cat-file", "blob", f"{self.revision}:{path}").decode().replace("\r\n", "\n")
        except (UsageError, UnicodeDecodeError):
            return None

    def plans(self) -> tuple[str, ...]:
        """Every plan that git tracks in this tree."""
        if self.revision in (None, INDEX):
            listed = git_paths("ls-files", "-z", "--full-name", "--", PLANS)
        else:
            listed = git_paths("ls-tree", "-r", "-z", "--name-only", "--full-tree", f"{self.revision}")
        return tuple(sorted({path for path in listed if path.endswith(".plan")}))

    def files(self, plan: str) -> Load:
        """Return a function that reads files that a plan of this tree includes."""
        name = self.repository.name(plan)
        folder = posixpath.dirname(plan)
        here = local_files((self.repository.top / plan).parent, plan=name)

        def load(path: str, span: Span) -> tuple[SourceFile | None, tuple[Diagnostic, ...]]:
            full = posixpath.normpath(posixpath.join(folder, path))
            # The working tree may have links, which its own reader checks.
            if self.revision is None and full not in self.replaced:
                return here(path, span)
            text = self.text(full)
            if text is None:
                what = f"{path} is not a text file in {self.revision or 'the working tree'}"
                return None, (CANNOT_INCLUDE.at(span, what),)
            return SourceFile(os.path.normpath(Path(name).parent / path), text), ()

        return load


def trees_of(texts: Mapping[str, Path], repository: Repository) -> tuple[Tree, ...]:
    """The trees that the files can be from; each has the given versions of the plans.

    Git passes a difftool only the files, so any revision with all of them may be meant. If such revisions
    include different files, there is a tree for each, with a note of the choice.
    """
    # Git passes the working tree's file for a committed version that is equal to it.
    is_here = all(_is_same_file(file, repository.top / path) for path, file in texts.items())
    blobs = {path: git("hash-object", f"--path={path}", "--", str(file)) for path, file in texts.items()}
    revisions: list[str | None] = [None] if is_here else []
    revisions.extend(_revisions({path: blob.decode().strip() for path, blob in blobs.items()}))
    if not revisions:
        texts_here = {path: source.text for path, file in texts.items() if (source := read_source(file)[0])}
        return (Tree(repository, None, texts_here, HERE),)
    first = Tree(repository, revisions[0])
    included = {file for path in texts for file in included_files(path, first)}
    models = {file for path in texts for file in _model_files(path, first)}
    distinct = {
        (_content(revision, included, repository), _model_content(revision, models, repository)): revision
        for revision in reversed(revisions)
    }
    if len(distinct) == 1:
        return (Tree(repository, revisions[0]),)
    kept = [revision for revision in revisions if revision in distinct.values()][:_MAX_TREES]
    text = "several revisions have this text; included files and the model are read"
    return tuple(Tree(repository, one, note=f"{text} {_where(one)}") for one in kept)


def _where(revision: str | None) -> str:
    known = {None: "from the working tree", INDEX: "from the index"}
    return known.get(revision) or f"from {git('rev-parse', '--short', str(revision)).decode().strip()}"


def _is_same_file(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.samefile(other)


def _revisions(blobs: Mapping[str, str]) -> Iterator[str]:
    """The index, HEAD and every other commit with these files, the likeliest first."""
    commits = git("rev-list", f"--max-count={_MAX_COMMITS}", "--all").decode().split()
    head = git("rev-parse", "--verify", "--quiet", "HEAD").decode().split() if commits else []
    revisions = tuple(dict.fromkeys((INDEX, *head, *commits)))
    for revision, found in zip(revisions, _blobs(revisions, tuple(blobs)), strict=True):
        if found == tuple(blobs.values()):
            yield revision


def _blobs(revisions: Iterable[str], paths: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The ids of each revision's files at the paths; empty for a missing file."""
    objects = "".join(f"{revision}:{path}\n" for revision in revisions for path in paths)
    answers = iter(
        git("cat-file", "--batch-check=%(objectname)", stdin=os.fsencode(objects)).decode().splitlines()
    )
    for _ in revisions:
        found = (next(answers) for _ in paths)
        yield tuple("" if answer.endswith(_MISSING) else answer for answer in found)


def _content(revision: str | None, paths: Iterable[str], repository: Repository) -> tuple[str, ...]:
    """The ids of a revision's files, as git would store them."""
    ordered = tuple(sorted(paths))
    if not ordered:
        return ()
    if revision is not None:
        return next(_blobs((revision,), ordered))
    here = ((path, repository.top / path) for path in ordered)
    return tuple(
        git("hash-object", f"--path={path}", "--", str(file)).decode().strip() if file.is_file() else ""
        for path, file in here
    )


def _model_content(revision: str | None, files: Iterable[str], repository: Repository) -> tuple[str, ...]:
    """Read as `_content`; without the model in a revision, from the files read instead of its own."""
    found = _content(revision, files, repository)
    return found if any(found) else _content(None, files, repository)


def syntax_tree(path: str, tree: Tree) -> ast.PlanFile | None:
    """The syntax tree of a file; None for a missing file, or one that does not parse."""
    text = tree.text(path)
    return None if text is None else parse(SourceFile(path, text))[0]


def included_files(path: str, tree: Tree) -> frozenset[str]:
    """Every file that a plan includes, whether it exists or not."""
    file = syntax_tree(path, tree)
    return frozenset() if file is None else includes_of(file, path, load=tree.files(path))


def _model_files(path: str, tree: Tree) -> tuple[str, ...]:
    """The files of a plan's model."""
    file, top = syntax_tree(path, tree), tree.repository.top
    hf = model_of(file, load=tree.files(path)) if file else None
    return model_files(hf, base=(top / path).parent, top=top)


def includes_of(file: ast.PlanFile, path: str, *, load: Load) -> frozenset[str]:
    """The files that a parsed plan at `path` includes, as `included_files` has them."""
    names: set[str] = set()
    folder = posixpath.dirname(path)

    def note(name: str, span: Span) -> tuple[SourceFile | None, tuple[Diagnostic, ...]]:
        names.add(posixpath.normpath(posixpath.join(folder, name)))
        return load(name, span)

    read_files(file, load=note)
    return frozenset(names)


def is_part(file: ast.PlanFile | None) -> bool:
    """Whether a file can only be included: it has no model and extends no plan."""
    if file is None:
        return False
    return not any(
        isinstance(statement, ast.Extends)
        or (isinstance(statement, ast.Block) and statement.kind.text == "model" and statement.label is None)
        for statement in file.statements
    )


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
    incomplete: list[Checked] = []
    for tree in trees:
        checked, note = _check(tree, source, path, settings=settings, world_size=world_size)
        side = side_of(checked, name=name)
        if side is not None:
            return replace(side, note="; ".join(filter(None, (tree.note, note)))), checked
        incomplete.append(checked)
    return None, incomplete[0]


def _check(
    tree: Tree, source: SourceFile, path: str, *, settings: Sequence[SourceFile], world_size: int | None
) -> tuple[Checked, str]:
    """Check a plan with the included files and the model of a tree; the note is that of `check_at`."""
    base, load = Path(source.name).parent, tree.files(path)
    if tree.revision is None:
        return check_source(source, base=base, settings=settings, world_size=world_size, load=load), ""
    return check_at(tree.revision, source, base=base, load=load, settings=settings, world_size=world_size)
