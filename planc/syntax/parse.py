"""Source text to syntax tree."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lark import Token, Tree
from lark.exceptions import UnexpectedInput

from planc.diagnostics import Diagnostic
from planc.record import record
from planc.source import SourceFile
from planc.syntax import ast
from planc.syntax.budget import MAX_CHARACTERS, MAX_DEPTH, MAX_DIGITS, over_budget
from planc.syntax.build import Builder
from planc.syntax.grammar import parser

if TYPE_CHECKING:
    from planc.syntax.recovery import Recovered

__all__ = ("MAX_CHARACTERS", "MAX_DEPTH", "MAX_DIGITS", "Reading", "parse", "parse_assignment", "read")

_ASSIGNMENT_HELP = 'write `name=value`, as in `mesh.tp=4` or `model.hf="models/llama"` (quotes included)'


@record
class Reading:
    """A plan file as far as it could be read: `file` where all of it parses, else `recovered`.

    Neither where the text is over a budget.
    """

    file: ast.PlanFile | None
    problems: tuple[Diagnostic, ...] = ()
    recovered: Recovered | None = None


def read(source: SourceFile) -> Reading:
    """The tree of a plan file; or every statement that keeps it from being one, and what the others say."""
    over = over_budget(source)
    if over:
        return Reading(None, over)
    tree = _tree(source, "start")
    if isinstance(tree, UnexpectedInput):
        # Most plans parse, and a check of those should not wait for the import.
        from planc.syntax.recovery import recover

        recovered = recover(source, tree)
        return Reading(None, recovered.problems, recovered)
    statements = Builder(source.name).statements(tree.children)
    return Reading(ast.PlanFile(source.name, statements, source.whole()))


def parse(source: SourceFile) -> tuple[ast.PlanFile | None, tuple[Diagnostic, ...]]:
    """The tree of a plan file, or everything that keeps it from being one."""
    reading = read(source)
    return reading.file, reading.problems


def parse_assignment(source: SourceFile) -> tuple[ast.Assignment | None, tuple[Diagnostic, ...]]:
    """The tree of one `path = value` from the command line, or the first thing wrong with it."""
    over = over_budget(source)
    if over:
        return None, over
    tree = _tree(source, "assignment")
    if isinstance(tree, UnexpectedInput):
        from planc.syntax.messages import syntax_error  # as above

        return None, (replace(syntax_error(tree, source), help=_ASSIGNMENT_HELP),)
    return Builder(source.name).assignment(tree), ()


def _tree(source: SourceFile, start: str) -> Tree[Token] | UnexpectedInput:
    try:
        return parser().parse(source.text, start=start)
    except UnexpectedInput as error:
        return error
