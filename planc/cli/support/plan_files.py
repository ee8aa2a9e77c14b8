"""The plans that a command line names: files, directories of them, or stdin."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from planc.api import Checked
from planc.cli.support.arguments import STDIN
from planc.cli.support.exits import UsageError
from planc.diagnostics import Severity
from planc.plan.codes import MISSING, NOT_BELOW_ROOT, PRESET
from planc.record import record
from planc.syntax import ast
from planc.syntax.parse import parse

SUFFIX = ".plan"

_ERRORS_OF_BASES = {MISSING, NOT_BELOW_ROOT, PRESET}
"""Codes that a check of a base alone reports: it lacks blocks, or includes files above its own directory."""
_BLOCKS = {"model", "mesh", "data", "optimizer", "train"}
"""A base that lacks one of these can break any rule by itself."""


@record
class PlanFile:
    """A file to read. `is_listed` if a directory was named, not the file."""

    path: str
    is_listed: bool = False


def plan_files(names: Sequence[str]) -> tuple[PlanFile, ...]:
    """Expand directories to every .plan file in them, sorted; hidden directories are skipped.

    UsageError for a directory without plans, and for stdin among other names.
    """
    if STDIN in names and len(names) > 1:
        raise UsageError("`-` (stdin) can't be combined with other files")
    files: list[PlanFile] = []
    for name in names:
        if name == STDIN or not name or not os.path.isdir(name):
            # As a finding names the file: `./x.plan` is `x.plan`.
            files.append(PlanFile(str(Path(name))))
            continue
        listed = [PlanFile(path, is_listed=True) for path in _plans_in(name)]
        if not listed:
            raise UsageError(f"no {SUFFIX} file in `{name}`")
        files.extend(listed)
    return tuple(files)


def _plans_in(directory: str) -> Iterator[str]:
    for folder, subfolders, names in os.walk(directory):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        yield from (str(Path(folder, name)) for name in sorted(names) if name.endswith(SUFFIX))


def included_by(checked: Iterable[Checked]) -> frozenset[str]:
    """Return the real paths of all files that the checked plans extend or import."""
    return frozenset(os.path.realpath(name) for one in checked for name in one.included)


def is_part(checked: Checked, path: str, *, included: frozenset[str]) -> bool:
    """Whether a file is a preset, or a base that some plan includes: it is checked as a part of that plan."""
    errors = {diagnostic.code for diagnostic in checked.diagnostics if diagnostic.severity is Severity.ERROR}
    if not errors:
        return False
    if errors == {PRESET}:
        return True
    return os.path.realpath(path) in included and (errors <= _ERRORS_OF_BASES or _lacks_blocks(checked, path))


def _lacks_blocks(checked: Checked, path: str) -> bool:
    source = checked.sources.get(path)
    file = parse(source)[0] if source else None
    if file is None or any(isinstance(statement, ast.Extends) for statement in file.statements):
        return False
    blocks = (statement for statement in file.statements if isinstance(statement, ast.Block))
    return not {block.kind.text for block in blocks if block.label is None} >= _BLOCKS
