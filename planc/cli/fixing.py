"""Fixing plans: check, apply, check again, until nothing is left to apply."""

from __future__ import annotations

import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

from planc.api import Checked, check_source, read_source
from planc.cli.exits import UsageError
from planc.diagnostics.fixes import apply_fixes, is_fixable
from planc.diagnostics.visible import visible
from planc.inventory.files import write_atomically
from planc.source import SourceFile

MAX_ROUNDS = 10
"""One fix can uncover the next, as a block's right name uncovers its keys. Fixes that undo each other end
here."""


@dataclass(frozen=True, slots=True)
class FixedPlan:
    """A plan before and after its fixes, and what is found on the text with them. Nothing is written yet."""

    path: str
    before: str
    after: str
    num_fixed: int
    checked: Checked

    @property
    def is_changed(self) -> bool:
        return self.before != self.after

    @property
    def num_unsafe(self) -> int:
        """Findings left that an unsafe fix would put right."""
        return sum(
            is_fixable(diagnostic, with_unsafe=True) and not is_fixable(diagnostic, with_unsafe=False)
            for diagnostic in self.checked.diagnostics
        )

    def diff(self) -> str:
        """The change as a unified diff; empty where nothing changes."""
        name = visible(self.path)
        lines = unified_diff(_lines(self.before), _lines(self.after), name, name)
        return "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
        )


def fix_plan(
    path: str, *, settings: Sequence[SourceFile], world_size: int | None, with_unsafe: bool
) -> FixedPlan:
    """The plan at `path` with its fixes. Line ends stay as they are. UsageError when it changes meanwhile."""
    source, problems = read_source(Path(path))
    if source is None:
        return FixedPlan(path, "", "", 0, Checked({}, problems))
    before = after = _read(Path(path))
    if _unified(before) != source.text:
        raise UsageError(f"{path} changed while it was read; nothing was fixed")
    num_fixed = 0
    for _ in range(MAX_ROUNDS):
        checked = _check(SourceFile(source.name, _unified(after)), settings=settings, world_size=world_size)
        fixed = apply_fixes(SourceFile(source.name, after), checked.diagnostics, with_unsafe=with_unsafe)
        if not fixed.applied:
            return FixedPlan(path, before, after, num_fixed, checked)
        after = fixed.text
        num_fixed += len(fixed.applied)
    checked = _check(SourceFile(source.name, _unified(after)), settings=settings, world_size=world_size)
    return FixedPlan(path, before, after, num_fixed, checked)


def write(fixed: FixedPlan) -> None:
    """Replaces the plan, whole or not at all, its permissions kept and links followed.

    UsageError when it cannot be written, or is no longer what was read.
    """
    if not fixed.is_changed:
        return
    path = Path(fixed.path).resolve()
    if _read(path) != fixed.before:
        raise UsageError(f"{fixed.path} changed while it was checked; nothing was fixed")
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        write_atomically(path, text=fixed.after)
        path.chmod(mode)
    except OSError as error:
        raise UsageError(f"{fixed.path} cannot be written: {error.strerror}") from error


def _check(source: SourceFile, *, settings: Sequence[SourceFile], world_size: int | None) -> Checked:
    return check_source(source, base=Path(source.name).parent, settings=settings, world_size=world_size)


def _read(path: Path) -> str:
    """The text with its line ends as they are."""
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} changed while it was read: {error}") from error


def _unified(text: str) -> str:
    """The text as `read_source` gives it."""
    return text.replace("\r\n", "\n")


def _lines(text: str) -> list[str]:
    """Lines with their ends; only `\\n` ends one, as everywhere in planc."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)
