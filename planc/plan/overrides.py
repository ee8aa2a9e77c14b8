"""Values from outside the plan's text: `--set mesh.tp=4`, `TP_SIZE=4`."""

from __future__ import annotations

from planc.diagnostics import Diagnostic
from planc.record import record
from planc.source import SourceFile
from planc.syntax import ast
from planc.syntax.parse import parse_assignment


@record
class Override:
    """One assignment; `kind` is `set` or `environment`, `text` how a person wrote it."""

    assignment: ast.Assignment
    kind: str
    text: str


def parse_override(source: SourceFile, *, kind: str) -> tuple[Override | None, tuple[Diagnostic, ...]]:
    """An override from a source that holds one `path=value`."""
    assignment, problems = parse_assignment(source)
    if assignment is None:
        return None, problems
    prefix = "--set " if kind == "set" else ""
    return Override(assignment, kind, f"{prefix}{source.text}"), problems
