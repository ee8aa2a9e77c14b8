"""A data source from outside a plan: `--data held_out/*.txt`, or a call as a plan writes it."""

from __future__ import annotations

from planc.diagnostics import Diagnostic
from planc.plan.data import SOURCES, AnySource, source_call
from planc.plan.scope import Scope
from planc.plan.types import Variant
from planc.source import SourceFile
from planc.syntax.parse import parse_assignment

_PREFIX = "data.source="


def given_source(text: str, *, name: str) -> tuple[AnySource | None, tuple[Diagnostic, ...], SourceFile]:
    """The source of a text that `name` gave, what is wrong with it, and the source that findings point into.

    A text without a call is the path of files, whose suffix names the call.
    """
    written = text if "(" in text else source_call(text)
    file = SourceFile(name, f"{_PREFIX}{written}")
    assignment, problems = parse_assignment(file)
    if assignment is None:
        return None, problems, file
    scope = Scope({})
    source: AnySource | None = Variant(SOURCES, "source").convert(assignment.value, scope)
    return (None if scope.diagnostics else source), tuple(scope.diagnostics), file
