"""Fix plans: check, apply fixes and check again, until no fixes are left."""

from __future__ import annotations

import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

from planc.api import Checked, check_source, local_files, read_source
from planc.cli.support.exits import UsageError
from planc.cli.support.plans import announce_probe
from planc.diagnostics import Applicability, Diagnostic
from planc.diagnostics.fixes import apply_fixes, is_undone
from planc.diagnostics.wrap import visible
from planc.inventory.files import write_atomically
from planc.plan.include import Load
from planc.source import SourceFile, Span

MAX_ROUNDS = 10
"""One fix can reveal the next, as a block's correct name reveals its keys. The limit stops fixes that undo
each other."""


@dataclass(slots=True)
class FixedFile:
    """A file before and after its fixes, and their number."""

    path: str
    before: str
    after: str
    num_fixed: int = 0

    @property
    def is_changed(self) -> bool:
        return self.before != self.after

    def diff(self) -> str:
        """The change as a unified diff; empty without changes."""
        name = visible(self.path)
        lines = unified_diff(_lines(self.before), _lines(self.after), name, name)
        return "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
        )


@dataclass(frozen=True, slots=True)
class FixedPlan:
    """A plan and the files that it includes, with their fixes, and the findings that remain.

    Nothing is written yet. `files` has the plan first, then included files with fixes.
    """

    files: tuple[FixedFile, ...]
    checked: Checked

    @property
    def is_changed(self) -> bool:
        return any(file.is_changed for file in self.files)

    def num_unsafe(self, file: FixedFile) -> int:
        """The number of remaining findings that an unsafe fix in the file would resolve."""
        return sum(
            found.fix is not None
            and found.fix.applicability is Applicability.UNSAFE
            and found.fix.span.file == file.path
            for found in self.checked.diagnostics
        )

    def num_undone(self, file: FixedFile) -> int:
        """The number of fixes in the file that were tried and undone because they lead to another finding."""
        return sum(
            is_undone(found) and found.fix is not None and found.fix.span.file == file.path
            for found in self.checked.diagnostics
        )

    def diff(self) -> str:
        """The changes as a unified diff; empty without changes."""
        return "".join(file.diff() for file in self.files)


def fix_plan(
    path: str, *, settings: Sequence[SourceFile], world_size: int | None, with_unsafe: bool
) -> FixedPlan:
    """Fix the plan at `path` and the files that it includes, which are all below its directory.

    Line endings are kept. UsageError if a file changes meanwhile.
    """
    source, problems = read_source(Path(path))
    if source is None:
        return FixedPlan((), Checked({}, problems))
    files = {source.name: _read_again(source)}
    for _ in range(MAX_ROUNDS):
        checked = _check(files, plan=source.name, settings=settings, world_size=world_size)
        for name in _included_with_fixes(checked):
            if name not in files:
                files[name] = _read_again(checked.sources[name])
        if not _apply(files, checked.diagnostics, with_unsafe=with_unsafe):
            return FixedPlan(tuple(files.values()), checked)
    checked = _check(files, plan=source.name, settings=settings, world_size=world_size)
    return FixedPlan(tuple(files.values()), checked)


def write(fixed: FixedPlan) -> None:
    """Replace each changed file atomically; permissions are kept and links followed.

    UsageError if a file can't be written, or has changed since it was read.
    """
    changed = [file for file in fixed.files if file.is_changed]
    for file in changed:
        if _read(Path(file.path)) != file.before:
            raise UsageError(f"{file.path} changed during the check; nothing was fixed")
    for file in changed:
        path = Path(file.path).resolve()
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
            write_atomically(path, text=file.after)
            path.chmod(mode)
        except OSError as error:
            raise UsageError(f"{file.path} cannot be written: {error.strerror}") from error


def _check(
    files: dict[str, FixedFile], *, plan: str, settings: Sequence[SourceFile], world_size: int | None
) -> Checked:
    """Check the plan with the fixes so far."""
    base = Path(plan).parent
    load = _fixed(local_files(base, plan=plan), files)
    source = SourceFile(plan, _unified(files[plan].after))
    return check_source(
        source, base=base, settings=settings, world_size=world_size, load=load, on_probe=announce_probe
    )


def _fixed(load: Load, files: dict[str, FixedFile]) -> Load:
    """Read included files with their fixes."""

    def read(path: str, span: Span) -> tuple[SourceFile | None, tuple[Diagnostic, ...]]:
        source, problems = load(path, span)
        if source is not None and source.name in files:
            source = SourceFile(source.name, _unified(files[source.name].after))
        return source, problems

    return read


def _included_with_fixes(checked: Checked) -> list[str]:
    """The included files that findings would fix, in the order of the findings."""
    named = (found.fix.span.file for found in checked.diagnostics if found.fix is not None)
    return [name for name in dict.fromkeys(named) if name in checked.included]


def _apply(files: dict[str, FixedFile], diagnostics: Sequence[Diagnostic], *, with_unsafe: bool) -> bool:
    """Apply to each file its fixes; return whether there were any."""
    num_applied = 0
    for file in files.values():
        fixed = apply_fixes(SourceFile(file.path, file.after), diagnostics, with_unsafe=with_unsafe)
        file.after = fixed.text
        file.num_fixed += len(fixed.applied)
        num_applied += len(fixed.applied)
    return num_applied > 0


def _read_again(source: SourceFile) -> FixedFile:
    """Read a file again, with its own line endings."""
    text = _read(Path(source.name))
    if _unified(text) != source.text:
        raise UsageError(f"{source.name} changed while it was read; nothing was fixed")
    return FixedFile(source.name, text, text)


def _read(path: Path) -> str:
    """The text with its own line endings."""
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} changed while it was read: {error}") from error


def _unified(text: str) -> str:
    """The text as `read_source` gives it."""
    return text.replace("\r\n", "\n")


def _lines(text: str) -> list[str]:
    """Lines with their endings; only `\\n` ends a line, as everywhere in planc."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)
