"""Input of renderers for programs: the findings on all plans of one command."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field

from planc.diagnostics.diagnostic import Diagnostic
from planc.record import record
from planc.source import SourceFile, Span


@record
class PlanFindings:
    """The findings on one plan, which may be none.

    `sources` has every text by its name. Those in `settings` are not files: programs that only
    know files get their findings at the plan.
    """

    file: str
    diagnostics: tuple[Diagnostic, ...]
    sources: Mapping[str, SourceFile] = field(default_factory=dict)
    settings: tuple[str, ...] = ()

    def is_in_file(self, span: Span) -> bool:
        """Whether a span is in a file, rather than in a value from the command line or the environment."""
        return span.file not in self.settings

    def file_of(self, span: Span) -> str:
        """The file to show a span's finding at."""
        return span.file if self.is_in_file(span) else self.file

    def line_of(self, span: Span) -> str:
        """The text of the line on which a span starts; empty where the source is not at hand."""
        source = self.sources.get(span.file)
        return source.lines[span.line - 1].strip() if source else ""


@record
class Report:
    """All plans in the order of the command line. `root` is the folder that paths are relative to."""

    plans: tuple[PlanFindings, ...]
    root: str = ""

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        return tuple(diagnostic for plan in self.plans for diagnostic in plan.diagnostics)

    def path(self, file: str) -> str:
        """A file as seen from `root`, with forward slashes; absolute when it lies outside."""
        path = os.path.normpath(os.path.join(self.root, file))
        if self.root and path.startswith(os.path.join(self.root, "")):
            path = os.path.relpath(path, self.root)
        return path.replace(os.sep, "/")


def message(diagnostic: Diagnostic) -> str:
    """The finding in one line: its summary, and the particulars of its primary label."""
    text = diagnostic.primary.text
    return f"{diagnostic.code.summary}: {text}" if text else diagnostic.code.summary


def explanation(diagnostic: Diagnostic) -> tuple[str, ...]:
    """Return lines for a reader without the plan at hand, one for each other label, note and help."""
    labels = (f"{label.span}: {label.text}" for label in diagnostic.secondary if label.text)
    help = (f"help: {diagnostic.help}",) if diagnostic.help else ()
    return (*labels, *diagnostic.notes, *help)
