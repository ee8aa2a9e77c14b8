"""Suppression comments: `# planc: ignore[P802] reason`, at the end of a finding's line or alone above it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from planc.diagnostics import Applicability, Code, Diagnostic, Fix, Severity, has_errors
from planc.diagnostics.suggest import did_you_mean
from planc.record import record
from planc.source import SourceFile, Span
from planc.syntax.tokens import Comment, comments

MALFORMED = Code("P901", "malformed-suppression", "malformed suppression comment")
SUPPRESSED_ERROR = Code("P902", "suppressed-error", "an error cannot be suppressed")
UNUSED = Code("P903", "unused-suppression", "this comment suppresses nothing", Severity.WARNING)

CODES = (MALFORMED, SUPPRESSED_ERROR, UNUSED)

# Any comment that starts like this is meant for planc, so a typo in the rest is reported.
_TO_PLANC = re.compile(r"#+\s*planc\s*:\s*")
_IGNORE = re.compile(r"ignore\s*\[(?P<codes>[^\]]*)\](?P<reason>.*)")
_HELP = "write `# planc: ignore[P802] reason`"


@record
class Suppression:
    """`codes` are not reported on `line` of the comment's file. `codes_span` is the text in the brackets."""

    comment: Comment
    codes: tuple[str, ...]
    codes_span: Span
    line: int

    def covers(self, diagnostic: Diagnostic) -> bool:
        """Whether a finding on the suppression's line is of one of its codes."""
        return diagnostic.code.code in self.codes


def suppress(
    source: SourceFile, diagnostics: Sequence[Diagnostic], *, known: Mapping[str, Code]
) -> tuple[Diagnostic, ...]:
    """The findings that no comment in `source` suppresses, and findings on the comments themselves.

    An unused comment is reported only for a plan without errors: an error may hide what it is for.
    """
    suppressions, problems = read_suppressions(source, known=known)
    by_line: dict[tuple[str, int], list[Suppression]] = {}
    for suppression in suppressions:
        by_line.setdefault((source.name, suppression.line), []).append(suppression)
    covers = [
        [found for found in by_line.get((span.file, span.line), ()) if found.covers(diagnostic)]
        for diagnostic in diagnostics
        for span in (diagnostic.primary.span,)
    ]
    remaining = [one for one, found in zip(diagnostics, covers, strict=True) if not found]
    if not has_errors((*remaining, *problems)):
        used = frozenset(
            (suppression.comment.span, one.code.code)
            for one, found in zip(diagnostics, covers, strict=True)
            for suppression in found
        )
        problems = (*problems, *_unused(source, suppressions, used))
    return (*remaining, *problems)


def read_suppressions(
    source: SourceFile, *, known: Mapping[str, Code]
) -> tuple[tuple[Suppression, ...], tuple[Diagnostic, ...]]:
    """The valid suppressions of a text, and a finding for each malformed one."""
    every = comments(source)
    below: dict[int, int] = {}
    for comment in reversed(every):
        if comment.is_alone:
            below[comment.span.line] = below.get(comment.span.line + 1, comment.span.line + 1)
    suppressions: list[Suppression] = []
    problems: list[Diagnostic] = []
    for comment in every:
        address = _TO_PLANC.match(comment.text)
        if address is None:
            continue
        suppression, faults = _read(comment, address.end(), known=known, below=below)
        problems.extend(faults)
        suppressions.extend([suppression] if suppression else [])
    return tuple(suppressions), tuple(problems)


def _read(
    comment: Comment, start: int, *, known: Mapping[str, Code], below: Mapping[int, int]
) -> tuple[Suppression | None, tuple[Diagnostic, ...]]:
    """`below` has the line that each comment on a line of its own applies to."""
    match = _IGNORE.fullmatch(comment.text, start)
    if match is None:
        is_ignore = re.match(r"ignore\b", comment.text[start:])
        text = "the code in brackets is missing" if is_ignore else "the only form is `ignore[CODE] reason`"
        return None, (MALFORMED.at(comment.span, text, help=_HELP),)
    if not re.search(r"\w", match["reason"]):
        return None, (MALFORMED.at(comment.span, "the reason is missing", help=_HELP),)
    listed = tuple(re.finditer(r"[^\s,]+", match["codes"]))
    if not listed:
        return None, (MALFORMED.at(comment.span, "the code in brackets is missing", help=_HELP),)
    problems = tuple(
        problem
        for word in listed
        if (problem := _code_problem(word.group(), _part(comment, word.span(), match.start("codes")), known))
    )
    codes = tuple(word.group() for word in listed)
    line = below.get(comment.span.line, comment.span.line)
    suppression = Suppression(comment, codes, _part(comment, match.span("codes"), 0), line)
    return (None if problems else suppression), problems


def _code_problem(word: str, span: Span, known: Mapping[str, Code]) -> Diagnostic | None:
    code = known.get(word)
    if code is None:
        help = did_you_mean(word, known) or "run `planc explain` to list all codes"
        return MALFORMED.at(span, f"unknown code `{word}`", help=help)
    if code.severity is Severity.ERROR:
        help = "fix the error, and remove the comment"
        return SUPPRESSED_ERROR.at(span, f"{word} is an error: {code.summary}", help=help)
    return None


def _part(comment: Comment, place: tuple[int, int], offset: int) -> Span:
    """The span of some characters of the comment's text, counted from `offset`."""
    line, column = comment.span.line, comment.span.column + offset
    return Span(comment.span.file, line, column + place[0], line, column + place[1])


def _unused(
    source: SourceFile, suppressions: Iterable[Suppression], used: frozenset[tuple[Span, str]]
) -> Iterator[Diagnostic]:
    for suppression in suppressions:
        kept = [code for code in suppression.codes if (suppression.comment.span, code) in used]
        idle = [code for code in suppression.codes if code not in kept]
        if not idle:
            continue
        # Under other settings the plan may have the finding, so only its author can decide.
        fix = (
            Fix(suppression.codes_span, ", ".join(kept), Applicability.UNSAFE)
            if kept
            else Fix(_removal(source, suppression.comment), "", Applicability.UNSAFE)
        )
        text = f"line {suppression.line} has no {' or '.join(idle)}"
        yield UNUSED.at(
            suppression.comment.span,
            text,
            help="remove the unused code" if kept else "remove the comment",
            fix=fix,
        )


def _removal(source: SourceFile, comment: Comment) -> Span:
    """The text to remove with a comment: the space before it, or its whole line if nothing else is on it."""
    span, lines = comment.span, source.lines
    if comment.is_alone and span.line < len(lines):
        return Span(span.file, span.line, 1, span.line + 1, 1)
    before = lines[span.line - 1][: span.column - 1].rstrip()
    return Span(span.file, span.line, len(before) + 1, span.line, span.end_column)
