"""Findings as an editor shows them, and their fixes.

They are in the open text, with the other places that take part. Quick fixes go line by line: those of
`planc check --fix`, one at a time or all safe ones at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import SequenceMatcher

from planc.diagnostics import Applicability, Diagnostic, Fix, Label, Severity
from planc.diagnostics.fixes import apply_fixes, is_fixable
from planc.diagnostics.wrap import visible
from planc.lsp.session import Analysis
from planc.plan.codes import PRESET
from planc.record import record
from planc.source import SourceFile, Span


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


_LINE = re.compile(r"[^\n]*\n|[^\n]+")


def line_edits(source: SourceFile, text: str) -> Iterator[tuple[Span, str]]:
    """Spans of `source` with their replacements, which together make it `text`. They do not overlap."""
    old, new = _LINE.findall(source.text), _LINE.findall(text)
    end = source.whole()

    def start_of(index: int) -> tuple[int, int]:
        return (index + 1, 1) if index < len(old) else (end.end_line, end.end_column)

    for tag, first, last, new_first, new_last in SequenceMatcher(None, old, new).get_opcodes():
        if tag != "equal":
            yield Span(source.name, *start_of(first), *start_of(last)), "".join(new[new_first:new_last])


_MAX_SHOWN = 40
"""Characters of a replacement in a title."""


@record
class Action:
    """A change that the editor offers. `finding` is the one that it resolves, None for several."""

    title: str
    edits: tuple[Fix, ...]
    finding: Finding | None = None
    is_preferred: bool = False


def quick_fixes(analysis: Analysis, *, first_line: int, last_line: int) -> Iterator[Action]:
    """The fixes of findings that touch these lines; an unsafe one has that in its title."""
    seen: set[Fix] = set()
    for finding in findings(analysis):
        fix = finding.diagnostic.fix
        if finding.span.line > last_line or finding.span.end_line < first_line:
            continue
        if fix is None or fix in seen or not is_fixable(finding.diagnostic, with_unsafe=True):
            continue
        seen.add(fix)
        title = _title(fix, analysis) + ("" if fix.is_safe else " (unsafe: it may change what is meant)")
        yield Action(title, (fix,), finding, is_preferred=fix.is_safe)


def fix_all(analysis: Analysis) -> Action | None:
    """All safe fixes of the open text that do not overlap; None without any."""
    fixed = apply_fixes(analysis.source, analysis.checked.diagnostics, with_unsafe=False)
    if not fixed.applied:
        return None
    edits = line_edits(analysis.source, fixed.text)
    return Action("Apply all safe fixes", tuple(Fix(span, text, Applicability.SAFE) for span, text in edits))


def _title(fix: Fix, analysis: Analysis) -> str:
    old, new = _shown(analysis.text(fix.span)), _shown(fix.replacement)
    if not new:
        return f"Remove {old}"
    return f"Replace {old} with {new}" if old else f"Insert {new}"


def _shown(text: str) -> str:
    """A text on one line, in backticks; empty for space."""
    line = " ".join(text.split())
    return f"`{line if len(line) <= _MAX_SHOWN else line[:_MAX_SHOWN] + '…'}`" if line else ""
