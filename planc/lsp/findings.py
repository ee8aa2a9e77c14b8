"""Findings as an editor shows them: in the open text, with the other places that take part."""

from __future__ import annotations

from collections.abc import Iterator

from planc.diagnostics import Diagnostic, Label, Severity
from planc.diagnostics.wrap import visible
from planc.lsp.session import Analysis
from planc.plan.codes import PRESET
from planc.record import record
from planc.source import Span


@record
class Finding:
    """A finding at a span of the open text. `related` has the places that it is about, in any file."""

    span: Span
    severity: Severity
    message: str
    related: tuple[Label, ...]
    diagnostic: Diagnostic


def findings(analysis: Analysis) -> Iterator[Finding]:
    """All findings; one in an included file is at the statement that includes the file."""
    for diagnostic in analysis.checked.diagnostics:
        span, related = diagnostic.primary.span, diagnostic.secondary
        if span.file != analysis.source.name:
            span, related = _include_of(span, analysis), (diagnostic.primary, *related)
        # Whoever opens a preset wants to edit it, and knows that it is not a plan.
        severity = Severity.NOTE if diagnostic.code is PRESET else diagnostic.severity
        yield Finding(span, severity, _message(diagnostic), related, diagnostic)


def _include_of(span: Span, analysis: Analysis) -> Span:
    """The statement of the open text by which a file came, perhaps through other files."""
    included = analysis.checked.included
    for _ in included:
        if span.file not in included:
            break
        span = included[span.file]
    return span if span.file == analysis.source.name else analysis.source.start()


def _message(finding: Diagnostic) -> str:
    """The summary with its particulars, then notes and help, one a line."""
    text = f": {finding.primary.text}" if finding.primary.text else ""
    notes = (f"note: {note}" for note in finding.notes)
    help = (f"help: {finding.help}",) if finding.help else ()
    lines = "\n".join((f"{finding.code.summary}{text}", *notes, *help)).split("\n")
    return "\n".join(map(visible, lines))
