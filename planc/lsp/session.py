"""The texts that are open in an editor, and what planc knows of each.

Models stay in memory between key strokes.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from planc.api import Checked, check_source, local_files
from planc.capacity.draft import Draft
from planc.diagnostics import Diagnostic
from planc.hub.user_dirs import cache_dir
from planc.inventory.known import KnownModels
from planc.inventory.schema import Inventory
from planc.plan.include import Load
from planc.record import record
from planc.source import SourceFile, Span
from planc.syntax import ast
from planc.syntax.parse import read


@dataclass(frozen=True, eq=False)
class Analysis:
    """A text with its findings.

    `model` is None where an error keeps the plan from its model; `last` is then the one of an earlier text.
    Files that the plan includes are named by their paths below `base`, as the text is.
    """

    source: SourceFile
    base: Path
    checked: Checked
    model: Draft | None = None
    last: Draft | None = None

    @cached_property
    def tree(self) -> ast.PlanFile:
        """The statements that parse."""
        return tree_of(self.source)

    def text(self, span: Span) -> str:
        """Return the text of a span, in any of the plan's files."""
        source = self.checked.sources.get(span.file, self.source)
        return (self.source if span.file == self.source.name else source).text_of(span)

    def included_tree(self, written: str, *, of: str) -> ast.PlanFile | None:
        """The statements of a file that `of` names by a path; None if the check did not reach it."""
        source = self.checked.sources.get(posixpath.normpath(posixpath.join(posixpath.dirname(of), written)))
        return tree_of(source) if source is not None else None

    @property
    def inventory(self) -> Inventory | None:
        """The structure of the plan's model, or of the one that an earlier text named."""
        return self.last.bound.inventory if self.last is not None else None

    def path(self, file: str) -> Path:
        """Return the path of a file that spans name."""
        return Path(os.path.normpath(self.base / file))


def tree_of(source: SourceFile) -> ast.PlanFile:
    """The statements of a text that parse; none of a text over a budget."""
    reading = read(source)
    if reading.file is not None:
        return reading.file
    if reading.recovered is not None:
        return reading.recovered.file
    return ast.PlanFile(source.name, (), source.whole())


@record
class Text:
    """An open text with the editor's number for it. Its lines end with LF, in the editor with `line_end`."""

    path: Path
    text: str
    version: int | None = None
    line_end: str = "\n"

    @property
    def source(self) -> SourceFile:
        return SourceFile(self.path.name, self.text)


@dataclass(slots=True)
class Session:
    """The open texts by path, with the last analysis of each, and the models of each directory's plans."""

    texts: dict[Path, Text] = field(default_factory=dict)
    analyses: dict[Path, Analysis] = field(default_factory=dict)
    models: dict[Path, KnownModels] = field(default_factory=dict)
    stale: set[Path] = field(default_factory=set)
    """Texts to check again although they have not changed."""

    def put(self, path: Path, text: str, *, version: int | None = None) -> None:
        """Open a text, or replace it."""
        line_end = "\r\n" if "\r\n" in text else "\n"
        self.texts[path] = Text(path, text.replace("\r\n", "\n"), version, line_end)

    def close(self, path: Path) -> None:
        self.texts.pop(path, None)
        self.analyses.pop(path, None)

    def forget_models(self) -> None:
        """Read models and files again when they are next needed: both may have changed."""
        self.models.clear()
        self.stale.update(self.texts)

    def is_fresh(self, path: Path) -> bool:
        """Whether the last analysis is of the open text, and of the open texts that it includes."""
        known = self.analyses.get(path)
        if known is None or path in self.stale or known.source.text != self.texts[path].text:
            return False
        return all(text == known.checked.sources[name].text for name, text in self._open_parts(known))

    def dependents(self, path: Path) -> tuple[Path, ...]:
        """The other open texts that include a file."""
        return tuple(
            other
            for other, known in self.analyses.items()
            if other != path and other in self.texts and path in map(known.path, known.checked.included)
        )

    def now(self, path: Path) -> Analysis | None:
        """An open text as it is, with what the last check found in it, maybe some key strokes ago."""
        if path not in self.texts:
            return None
        source, known = self.texts[path].source, self.analyses.get(path)
        if known is None:
            return Analysis(source, path.parent, Checked({}, ()))
        return known if known.source == source else replace(known, source=source, model=None)

    def keep(self, path: Path, analysis: Analysis) -> None:
        """Hold the analysis of a text, unless that was closed meanwhile."""
        if path in self.texts:
            self.analyses[path] = analysis

    def analyze(self, text: Text) -> Analysis:
        """Check a text, without settings from the command line or the environment.

        A model that no earlier command has inspected is a finding: inspecting it can take a minute.
        """
        source, base = text.source, text.path.parent
        self.stale.discard(text.path)
        if base not in self.models:
            self.models[base] = KnownModels(base, cache_dir(), may_probe=False)
        load = self._load(base, source)
        checked = check_source(source, base=base, load=load, models=self.models[base])
        before = self.analyses.get(text.path)
        last = checked.draft or (before.last if before is not None else None)
        return Analysis(source, base, checked, checked.draft, last)

    def _load(self, base: Path, plan: SourceFile) -> Load:
        """Read included files as the editor has them, else from the disk."""
        from_disk = local_files(base, plan=plan.name)

        def load(path: str, span: Span) -> tuple[SourceFile | None, tuple[Diagnostic, ...]]:
            source, problems = from_disk(path, span)
            if (
                source is not None
                and (opened := self.texts.get(Path(os.path.normpath(base / path)))) is not None
            ):
                return SourceFile(source.name, opened.text), problems
            return source, problems

        return load

    def _open_parts(self, known: Analysis) -> Iterator[tuple[str, str]]:
        """The open texts that an analysis includes, by the names that it has for them."""
        for name in known.checked.included:
            opened = self.texts.get(known.path(name))
            if opened is not None:
                yield name, opened.text
