"""Where the files of a version lie that git hands over without saying which revision it is of."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from planc.api import local_files, read_source
from planc.cli.support.exits import UsageError
from planc.cli.versions.git import git, git_paths, top_folder
from planc.diagnostics import Diagnostic
from planc.plan.codes import CANNOT_INCLUDE
from planc.plan.include import Load, read_files
from planc.source import SourceFile, Span
from planc.syntax import ast
from planc.syntax.parse import parse

PLANS = ":(top)*.plan"
"""Every plan of a repository, as git writes it."""

_INDEX = ":0"
_MAX_COMMITS = 10_000
"""A difference is rarely with what is older, and looking at so many takes a tenth of a second."""
_MAX_TREES = 4
"""What is here, staged, at HEAD, and newest besides."""


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository around the current folder. `top` is its working tree."""

    top: Path

    def path(self, file: str | Path) -> str:
        """A path from the current folder as one from the top, with forward slashes."""
        place = Path(file)
        return Path(os.path.relpath(place.parent.resolve() / place.name, self.top.resolve())).as_posix()

    def name(self, path: str) -> str:
        """A path from the top as one from the current folder."""
        return Path(os.path.relpath(self.top.resolve() / path, Path.cwd().resolve())).as_posix()


def repository_here() -> Repository | None:
    """None outside a repository, and where git is not installed."""
    try:
        return Repository(top_folder())
    except UsageError:
        return None


@dataclass(frozen=True, slots=True)
class Tree:
    """All files of a repository at one time. Paths start at its top.

    `revision` is a commit, or `:0` for what is staged; None for the working tree. `replaced` are texts of
    files that are read instead of what lies there. `note` says what a reader must know of the choice.
    """

    repository: Repository
    revision: str | None
    replaced: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    def text(self, path: str) -> str | None:
        """None where there is no such file, or it is no text."""
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
        """Every plan that git tracks there."""
        if self.revision in (None, _INDEX):
            listed = git_paths("ls-files", "-z", "--full-name", "--", PLANS)
        else:
            listed = git_paths("ls-tree", "-r", "-z", "--name-only", "--full-tree", f"{self.revision}")
        return tuple(sorted({path for path in listed if path.endswith(".plan")}))

    def files(self, plan: str) -> Load:
        """Reads what a plan of this tree includes."""
        name = self.repository.name(plan)
        folder = posixpath.dirname(plan)
        here = local_files((self.repository.top / plan).parent, plan=name)

        def load(path: str, span: Span) -> tuple[SourceFile | None, tuple[Diagnostic, ...]]:
            full = posixpath.normpath(posixpath.join(folder, path))
            # The working tree has links, which its own reader knows how to judge.
            if self.revision is None and full not in self.replaced:
                return here(path, span)
            text = self.text(full)
            if text is None:
                what = f"{path}: there is no such text in {self.revision or 'the working tree'}"
                return None, (CANNOT_INCLUDE.at(span, what),)
            return SourceFile(str(Path(name).parent / path), text), ()

        return load


def trees_of(texts: Mapping[str, Path], repository: Repository) -> tuple[Tree, ...]:
    """The trees that files can come from, each of which holds a version of the plan at a path.

    Git gives a difference's tool the files alone. Any revision that has all of them can be meant; where those
    include different files, there is a tree for each, whose note says that it was chosen.
    """
    # Git lends a file of the working tree for a committed version that is equal to it.
    is_here = all(_is_same_file(file, repository.top / path) for path, file in texts.items())
    blobs = {path: git("hash-object", f"--path={path}", "--", str(file)) for path, file in texts.items()}
    found: list[str | None] = [None] if is_here else []
    found.extend(_revisions({path: blob.decode().strip() for path, blob in blobs.items()}))
    if not found:
        texts_here = {path: source.text for path, file in texts.items() if (source := read_source(file)[0])}
        return (Tree(repository, None, texts_here, "what it includes is read as it is here now"),)
    included = {one for path in texts for one in included_files(path, Tree(repository, found[0]))}
    distinct = {_content(revision, included, repository): revision for revision in reversed(found)}
    if len(distinct) == 1:
        return (Tree(repository, found[0]),)
    kept = [revision for revision in found if revision in distinct.values()][:_MAX_TREES]
    text = "several revisions have this text; what it includes is read"
    return tuple(Tree(repository, one, note=f"{text} {_where(one)}") for one in kept)


def _where(revision: str | None) -> str:
    known = {None: "as it is here now", _INDEX: "as it is staged"}
    return known.get(revision) or f"from {_short(revision)}"


def _short(revision: str | None) -> str:
    return git("rev-parse", "--short", f"{revision}").decode().strip()


def _is_same_file(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.samefile(other)


def _revisions(blobs: Mapping[str, str]) -> Iterator[str]:
    """What is staged, HEAD and every other commit with these files: those most likely meant come first."""
    commits = git("rev-list", f"--max-count={_MAX_COMMITS}", "--all").decode().split()
    head = git("rev-parse", "--verify", "--quiet", "HEAD").decode().split() if commits else []
    revisions = tuple(dict.fromkeys((_INDEX, *head, *commits)))
    for revision, found in zip(revisions, _blobs(revisions, tuple(blobs)), strict=True):
        if found == tuple(blobs.values()):
            yield revision


def _blobs(revisions: Iterable[str], paths: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """For each revision the ids of its files at the paths; something else for one that is not there."""
    asked = "".join(f"{revision}:{path}\n" for revision in revisions for path in paths)
    answers = iter(
        git("cat-file", "--batch-check=%(objectname)", stdin=os.fsencode(asked)).decode().splitlines()
    )
    for _ in revisions:
        yield tuple(next(answers) for _ in paths)


def _content(revision: str | None, paths: Iterable[str], repository: Repository) -> tuple[str | None, ...]:
    """The ids of files there, as git would store them."""
    asked = tuple(sorted(paths))
    if not asked:
        return ()
    if revision is not None:
        return next(_blobs((revision,), asked))
    here = ((path, repository.top / path) for path in asked)
    return tuple(
        git("hash-object", f"--path={path}", "--", str(file)).decode().strip() if file.is_file() else None
        for path, file in here
    )


def syntax_tree(path: str, tree: Tree) -> ast.PlanFile | None:
    """None for a file that is not there or does not parse."""
    text = tree.text(path)
    return None if text is None else parse(SourceFile(path, text))[0]


def included_files(path: str, tree: Tree) -> frozenset[str]:
    """Every file that a plan asks for, there or not."""
    file = syntax_tree(path, tree)
    return frozenset() if file is None else asked_for(file, path, load=tree.files(path))


def asked_for(file: ast.PlanFile, path: str, *, load: Load) -> frozenset[str]:
    """As `included_files`, of a plan at `path` that is parsed."""
    asked: set[str] = set()
    folder = PurePosixPath(path).parent

    def listening(name: str, span: Span) -> tuple[SourceFile | None, tuple[Diagnostic, ...]]:
        asked.add(str(folder / name))
        return load(name, span)

    read_files(file, load=listening)
    return frozenset(asked)


def is_part(file: ast.PlanFile | None) -> bool:
    """Whether a file can only be included: it neither has a model nor extends a plan that has one."""
    if file is None:
        return False
    return not any(
        isinstance(statement, ast.Extends)
        or (isinstance(statement, ast.Block) and statement.kind.text == "model" and statement.label is None)
        for statement in file.statements
    )
