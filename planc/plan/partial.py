"""Faults of the statements that parse, in a plan of which others do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planc.diagnostics import Diagnostic
from planc.plan import codes
from planc.plan.resolve import resolve
from planc.source import SourceFile, Span
from planc.syntax import ast

if TYPE_CHECKING:
    from planc.syntax.recovery import Recovered

OF_ONE_STATEMENT = (
    codes.UNKNOWN_BLOCK,
    codes.UNKNOWN_KEY,
    codes.DUPLICATE,
    codes.WRONG_TYPE,
    codes.OUT_OF_RANGE,
    codes.UNKNOWN_NAME,
    codes.WRONG_UNIT,
    codes.WRONG_ARGUMENTS,
    codes.UNKNOWN_ACTION,
    codes.BAD_PATTERN,
    codes.UNKNOWN_MESH_DIM,
)
"""Not what is missing, unused or misplaced: a statement that does not parse may be what is missed."""


def findings_of(recovered: Recovered, source: SourceFile) -> tuple[Diagnostic, ...]:
    """The findings that stay when the rest of `source` is put right.

    None for a plan of several files: what the others bring is not known here.
    """
    if any(isinstance(statement, ast.Extends | ast.Import) for statement in recovered.file.statements):
        return ()
    _, problems = resolve(recovered.file, is_whole=False)
    return tuple(
        problem
        for problem in problems
        if problem.code in OF_ONE_STATEMENT
        and _text(source, problem.primary.span) not in recovered.doubtful_names
    )


def _text(source: SourceFile, span: Span) -> str:
    """Return the text of a span of one line."""
    return source.lines[span.line - 1][span.column - 1 : span.end_column - 1]
