"""Fixes, applied to a text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import assert_never

from planc.diagnostics.diagnostic import Applicability, Diagnostic, Fix
from planc.source import SourceFile


@dataclass(frozen=True, slots=True)
class Fixed:
    """A text after its fixes, and the findings whose fixes it has."""

    text: str
    applied: tuple[Diagnostic, ...]


def is_fixable(diagnostic: Diagnostic, *, with_unsafe: bool) -> bool:
    """Whether a finding has a fix that may be applied: a safe one, or any where unsafe ones are wanted."""
    if diagnostic.fix is None:
        return False
    match diagnostic.fix.applicability:
        case Applicability.SAFE:
            return True
        case Applicability.UNSAFE:
            return with_unsafe
        case Applicability.DISPLAY_ONLY:
            return False
        case never:
            assert_never(never)


def apply_fixes(source: SourceFile, diagnostics: Iterable[Diagnostic], *, with_unsafe: bool) -> Fixed:
    """The text with every fix in `source` that does not overlap an earlier one.

    What is left out for an overlap comes again when the new text is checked. Equal fixes of two findings are
    one. The text may end its lines with CRLF where the spans were found in one with LF: columns agree, and
    line ends of a replacement become the text's own.
    """
    starts = _line_starts(source)
    newline = "\r\n" if "\r\n" in source.text else "\n"
    pieces: list[str] = []
    applied: list[Diagnostic] = []
    done = 0
    last: Fix | None = None
    for diagnostic in sorted(diagnostics, key=_place):
        fix = diagnostic.fix
        if fix is None or fix.span.file != source.name or not is_fixable(diagnostic, with_unsafe=with_unsafe):
            continue
        if fix == last:
            applied.append(diagnostic)
            continue
        start = starts[fix.span.line - 1] + fix.span.column - 1
        # Two insertions at one place have no order, so the second waits too.
        if last is not None and (start < done or fix.span == last.span):
            continue
        pieces += (source.text[done:start], fix.replacement.replace("\n", newline))
        done = starts[fix.span.end_line - 1] + fix.span.end_column - 1
        applied.append(diagnostic)
        last = fix
    return Fixed("".join((*pieces, source.text[done:])), tuple(applied))


def _place(diagnostic: Diagnostic) -> tuple[int, int, int, int]:
    """Where the fix stands; findings without one come first."""
    if diagnostic.fix is None:
        return 0, 0, 0, 0
    span = diagnostic.fix.span
    return span.line, span.column, span.end_line, span.end_column


def _line_starts(source: SourceFile) -> Sequence[int]:
    """The offset of each line's first character."""
    return list(accumulate((len(line) + 1 for line in source.lines[:-1]), initial=0))
