"""The files that make up a plan: the chain that `extends` names, and what each file of it imports."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from planc.diagnostics import Diagnostic, Label, has_errors
from planc.extend import KINDS
from planc.extend.declarations import Declaration, Place, read_declarations
from planc.plan import codes
from planc.plan.blocks import BLOCKS
from planc.plan.scalars import listed
from planc.record import record
from planc.source import SourceFile, Span
from planc.syntax import ast
from planc.syntax.parse import MAX_CHARACTERS, parse

Load = Callable[[str, Span], tuple[SourceFile | None, tuple[Diagnostic, ...]]]
"""Reads a file by its path from the top plan's folder, for the statement with the path at the span.

What is outside the plan's tree is refused: see `NOT_BELOW_ROOT`.
"""

MAX_FILES = 100
"""The number of files of a plan, the top one among them."""
MAX_LEVELS = 16
"""Files of a chain of `extends`, the top one among them."""
MAX_INCLUDED_CHARACTERS = MAX_CHARACTERS
"""The length of all files that a plan includes together."""

# `http:`, `git:`, but also a Windows drive.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_RELATIVE = "write a path relative to this file, with `/` between folders"


@record
class Imported:
    """An `import` with the file that it names; `path` is relative to the top plan's folder."""

    statement: ast.Import
    path: str
    file: ast.PlanFile


@record
class ExtensionFile:
    """A file of Python code that an `extension` names, read and never run.

    `path` is relative to the top plan's folder; `digest` is the SHA-256 of the text.
    """

    statement: ast.Extension
    path: str
    source: SourceFile
    digest: str
    declarations: tuple[Declaration, ...]


@record
class Layer:
    """One file of the chain with what it imports."""

    file: ast.PlanFile
    imports: tuple[Imported, ...]


@record
class Files:
    """All files of a plan. `layers` go from the lowest base to the top plan.

    `sources` are the included files by path; `included` has the statement that includes each, by file name.
    """

    layers: tuple[Layer, ...]
    sources: Mapping[str, SourceFile]
    included: Mapping[str, Span]
    extensions: tuple[ExtensionFile, ...] = ()


def read_files(file: ast.PlanFile, *, load: Load) -> tuple[Files, bool, tuple[Diagnostic, ...]]:
    """The files of a plan, whether all of them are there and parse, and findings."""
    path = PurePath(file.file).name
    reader = _Reader(load, [path])
    layers: list[Layer] = []
    current: ast.PlanFile | None = file
    while current is not None:
        layers.insert(0, Layer(current, reader.imports(current, path)))
        reader.extend_by_code(current, path)
        statement = reader.base(current)
        if statement is None:
            break
        path, current = reader.extend(statement.path, path)
    files = Files(tuple(layers), reader.sources, reader.included, tuple(reader.extensions.values()))
    return files, not reader.is_broken, tuple(reader.diagnostics)


def _is_whole(file: ast.PlanFile) -> bool:
    """Whether a file is a plan, even if incomplete, and not a preset."""
    blocks = [statement for statement in file.statements if isinstance(statement, ast.Block)]
    if any(block.label is not None for block in blocks):
        return False
    has_base = any(isinstance(statement, ast.Extends) for statement in file.statements)
    return has_base or any(block.kind.text in BLOCKS and BLOCKS[block.kind.text].required for block in blocks)


def _span_of(place: Place, source: SourceFile) -> Span:
    """A place of Python's parser, which ends lines where a plan does not, too."""
    is_inside = place.end_line <= len(source.lines)
    span = Span(source.name, place.line, place.column, place.end_line, place.end_column)
    return span if is_inside else source.start()


@dataclass(slots=True, eq=False, repr=False)
class _Reader:
    """The state of one reading: files by path, each read once, and the chain of `extends` so far."""

    load: Load
    chain: list[str]
    sources: dict[str, SourceFile] = field(default_factory=dict)
    files: dict[str, ast.PlanFile | None] = field(default_factory=dict)
    included: dict[str, Span] = field(default_factory=dict)
    extensions: dict[str, ExtensionFile] = field(default_factory=dict)
    """Files of Python code by path."""
    diagnostics: list[Diagnostic] = field(default_factory=list)
    is_broken: bool = False

    def base(self, file: ast.PlanFile) -> ast.Extends | None:
        """The file's `extends`; a second one is reported."""
        bases = [statement for statement in file.statements if isinstance(statement, ast.Extends)]
        for extra in bases[1:]:
            first = Label(bases[0].span, "first given here")
            help = "let one base extend the other, or import the shared fragments"
            text = "a file can extend only one other file"
            self._report(codes.DUPLICATE.at(extra.span, text, secondary=(first,), help=help))
        return bases[0] if bases else None

    def extend(self, written: ast.Text, folder_of: str) -> tuple[str, ast.PlanFile | None]:
        """The path and the tree of the next base."""
        path = self._path(written, folder_of)
        if path is None:
            return "", None
        if self._is_cycle(written, path):
            return path, None
        if len(self.chain) == MAX_LEVELS:
            text, help = f"a chain of more than {MAX_LEVELS} files", "merge some of the bases"
            self._refuse(
                codes.INCLUDES_TOO_DEEP.at(written.span, text, notes=(self._chain(path),), help=help)
            )
            return path, None
        self.chain.append(path)
        return path, self._read(path, written.span)

    def imports(self, file: ast.PlanFile, path: str) -> tuple[Imported, ...]:
        """Return the imports of a file, each file once and each name once."""
        imported: list[Imported] = []
        by_alias: dict[str, Span] = {}
        by_path: dict[str, ast.Import] = {}
        for statement in file.statements:
            if not isinstance(statement, ast.Import):
                continue
            alias = statement.alias
            if alias.text in by_alias:
                first = Label(by_alias[alias.text], "first given here")
                text, help = f"a second import named `{alias.text}`", "choose another name"
                self._report(codes.DUPLICATE.at(alias.span, text, secondary=(first,), help=help))
                continue
            by_alias[alias.text] = alias.span
            target = self._path(statement.path, path)
            if target is None or self._is_cycle(statement.path, target):
                continue
            if target in by_path:
                first = Label(by_path[target].span, "first given here")
                help = f"use it as `{by_path[target].alias.text}`"
                text = "this file is imported twice"
                self._report(codes.DUPLICATE.at(statement.path.span, text, secondary=(first,), help=help))
                continue
            by_path[target] = statement
            tree = self._read(target, statement.path.span)
            if tree is not None and _is_whole(tree):
                text = f"`{target}` is a plan, not a file of fragments"
                base = f'`extends "{statement.path.value}"`'
                help = f"write {base} to build on it"
                self._refuse(codes.MISPLACED.at(statement.span, text, help=help))
            elif tree is not None:
                imported.append(Imported(statement, target, tree))
        return tuple(imported)

    def extend_by_code(self, file: ast.PlanFile, path: str) -> None:
        """Read the Python files that a file names, each once."""
        for statement in file.statements:
            if not isinstance(statement, ast.Extension):
                continue
            target = self._path(statement.path, path)
            if target is None:
                continue
            if target in self.extensions:
                first = Label(self.extensions[target].statement.span, "first given here")
                text, help = "this file is named twice", "remove this line"
                self._report(codes.DUPLICATE.at(statement.span, text, secondary=(first,), help=help))
            elif not target.endswith(".py"):
                text, help = f"`{target}` is not a `.py` file", "name a file of Python code"
                self._refuse(codes.BAD_EXTENSION.at(statement.path.span, text, help=help))
            elif (source := self._text(target, statement.path.span)) is not None:
                self._read_extension(statement, target, source)

    def _read_extension(self, statement: ast.Extension, path: str, source: SourceFile) -> None:
        declarations, problems = read_declarations(source.text, kinds=KINDS)
        for problem in problems:
            span = _span_of(problem.place, source)
            self._refuse(codes.BAD_EXTENSION.at(span, problem.text, help=problem.help))
        if not declarations and not problems:
            text = f"`{path}` registers nothing"
            help = f"decorate a function with {listed(f'`@{word}(...)`' for word in KINDS)} of `planc.extend`"
            self._refuse(codes.BAD_EXTENSION.at(statement.path.span, text, help=help))
        digest = hashlib.sha256(source.text.encode()).hexdigest()
        self.extensions[path] = ExtensionFile(statement, path, source, digest, declarations)

    def _path(self, written: ast.Text, folder_of: str) -> str | None:
        """A written path, relative to the top plan's folder; None after a report."""
        text = written.value
        if _SCHEME.match(text):
            reason = "only local files can be included"
        elif text.startswith(("/", "~")):
            reason = "the path starts outside the plan's tree"
        elif "\\" in text:
            reason = "directories must be separated by `/`"
        elif not text.strip():
            reason = "the path is empty"
        else:
            return posixpath.normpath(posixpath.join(posixpath.dirname(folder_of), text))
        self._refuse(codes.NOT_BELOW_ROOT.at(written.span, reason, help=_RELATIVE))
        return None

    def _is_cycle(self, written: ast.Text, path: str) -> bool:
        if path not in self.chain:
            return False
        if path == self.chain[-1]:
            text, help = f"`{path}` is this file", "remove this line"
        else:
            text = f"`{path}` already includes this file"
            help = "move what both files need to a third file"
        notes = (self._chain(path),)
        self._refuse(codes.INCLUDE_CYCLE.at(written.span, text, notes=notes, help=help))
        return True

    def _chain(self, path: str) -> str:
        return " -> ".join((*self.chain, path))

    def _read(self, path: str, span: Span) -> ast.PlanFile | None:
        """The tree of a file, which is read and parsed once; None after a report."""
        if path not in self.files:
            self.files[path] = self._read_first(path, span)
        return self.files[path]

    def _read_first(self, path: str, span: Span) -> ast.PlanFile | None:
        source = self._text(path, span)
        if source is None:
            return None
        file, problems = parse(source)
        if has_errors(problems):
            self._refuse(*problems)
            return None
        return file

    def _text(self, path: str, span: Span) -> SourceFile | None:
        """The text of a file, within the limits of what a plan includes; None after a report."""
        if len(self.files) + 1 >= MAX_FILES:
            # Reported once: further files are not read.
            if len(self.files) + 1 == MAX_FILES:
                text, help = f"a plan has at most {MAX_FILES} files", "merge some of the included files"
                self._refuse(codes.TOO_MANY_FILES.at(span, text, help=help))
            return None
        source, problems = self.load(path, span)
        if source is None:
            self._refuse(*problems)
            return None
        self.sources[path] = source
        self.included[source.name] = span
        num_characters = sum(len(known.text) for known in self.sources.values())
        if num_characters > MAX_INCLUDED_CHARACTERS:
            text = f"the included files up to here have {num_characters} characters"
            help = f"keep them below {MAX_INCLUDED_CHARACTERS} characters in total"
            self._refuse(codes.INCLUDES_TOO_LARGE.at(span, text, help=help))
            return None
        return source

    def _report(self, diagnostic: Diagnostic) -> None:
        self.diagnostics.append(diagnostic)

    def _refuse(self, *diagnostics: Diagnostic) -> None:
        """Reports what leaves the plan incomplete."""
        self.is_broken = True
        self.diagnostics.extend(diagnostics)
