"""Fixes, applied to a text, and tried before they are reported: a fixed text must not check worse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby
from typing import assert_never

from planc.diagnostics.diagnostic import Applicability, Diagnostic, Fix, Severity
from planc.record import record
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
    starts = list(accumulate((len(line) + 1 for line in source.lines[:-1]), initial=0))
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
    """Return the position of the fix; findings without one come first."""
    if diagnostic.fix is None:
        return 0, 0, 0, 0
    span = diagnostic.fix.span
    return span.line, span.column, span.end_line, span.end_column


_UNDONE = "the fix is unsafe: it would cause"
"""Begins the note on a finding whose fix is offered as unsafe since it was tried."""
_IN_VAIN = "the fix is unsafe: this finding would remain, or the result was not checked"

_MAX_ROUNDS = 4
"""A fix may uncover a finding that has a safe fix itself, as a block's right name uncovers its keys."""
_MAX_CHECKS = 24
_MAX_CHECKED_CHARACTERS = 500_000
"""The length of all texts together up to which fixes are confirmed: a large plan is checked again less
often."""


@record
class Trial:
    """Findings of a check, and how far it got: `reached` is the last phase that ran."""

    diagnostics: tuple[Diagnostic, ...]
    reached: int


@record
class Files:
    """The texts of a plan by file name, the plan's own first. Other plans may share all but the first."""

    sources: Mapping[str, SourceFile]
    plan: str


def confirmed(
    before: Trial,
    *,
    files: Files,
    check: Callable[[Mapping[str, SourceFile]], Trial],
    phase_of: Callable[[Diagnostic], int],
    shared_phases: frozenset[int],
) -> tuple[Diagnostic, ...]:
    """The findings, each safe fix among them tried: one whose text checks worse is unsafe from now on.

    A text checks worse if it has a finding that was not there before, or still has the one that the fix
    should remove. A finding that only appears because the check gets further does not count, unless it is
    where the fix is. In files that other plans share, a finding of a phase in `shared_phases` alone has
    a safe fix: the others depend on this plan's model.
    """
    judged = tuple(
        _within_reach(diagnostic, files, phase_of, shared_phases) for diagnostic in before.diagnostics
    )
    safe = [one for one in judged if one.fix is not None and one.fix.is_safe]
    if not safe:
        return judged
    tried = _Tries(replace(before, diagnostics=judged), files, check, phase_of)
    tried.accept([tuple(group) for _, group in groupby(sorted(safe, key=_line), key=_line)])
    return tuple(tried.undone.get(id(one), one) for one in judged)


def _within_reach(
    diagnostic: Diagnostic,
    files: Files,
    phase_of: Callable[[Diagnostic], int],
    shared_phases: frozenset[int],
) -> Diagnostic:
    """The finding, with a fix that is not safe if it is in no file, or if other plans may need another."""
    fix = diagnostic.fix
    if fix is None or not fix.is_safe or fix.span.file == files.plan:
        return diagnostic
    if fix.span.file not in files.sources:
        return replace(diagnostic, fix=replace(fix, applicability=Applicability.DISPLAY_ONLY))
    is_shared = phase_of(diagnostic) in shared_phases
    return (
        diagnostic if is_shared else replace(diagnostic, fix=replace(fix, applicability=Applicability.UNSAFE))
    )


def _line(diagnostic: Diagnostic) -> tuple[str, int]:
    """Fixes in one line are tried together: often they repair one statement."""
    assert diagnostic.fix is not None, "only findings with a fix are tried"
    return diagnostic.fix.span.file, diagnostic.fix.span.line


Unit = tuple[Diagnostic, ...]


@dataclass(slots=True, eq=False, repr=False)
class _Tries:
    """The state of the trials of one plan's fixes. `undone` has what is left of a finding, by its id."""

    before: Trial
    files: Files
    check: Callable[[Mapping[str, SourceFile]], Trial]
    phase_of: Callable[[Diagnostic], int]
    undone: dict[int, Diagnostic] = field(default_factory=dict)
    num_checks: int = 0

    def accept(self, units: Sequence[Unit]) -> Sequence[Unit]:
        """The units that may be applied together; the others are undone."""
        if not units:
            return units
        new = self._new_with(units)
        if not new:
            return units
        lines = {line for one in new for line in _lines(one)}
        named = [unit for unit in units if _line(unit[0]) in lines]
        if len(units) == 1 or (named and len(named) < len(units)):
            self._undo(named or units, new)
            undone = {_line(unit[0]) for unit in named}
            return self.accept([unit for unit in units if _line(unit[0]) not in undone]) if named else ()
        middle = len(units) // 2
        first, second = self.accept(units[:middle]), self.accept(units[middle:])
        if not first or not second:
            return first or second
        new = self._new_with((*first, *second))
        if new:
            self._undo(second, new)
        return first if new else (*first, *second)

    def _undo(self, units: Iterable[Unit], new: Sequence[Diagnostic]) -> None:
        worst = min(new, key=lambda one: (one.severity is not Severity.ERROR, one.primary.span))
        found = f"{worst.code.code} ({worst.code.summary}) in line {worst.primary.span.line}"
        for finding in (finding for unit in units for finding in unit):
            assert finding.fix is not None, "units are made of findings with a fix"
            fix = replace(finding.fix, applicability=Applicability.UNSAFE)
            note = (
                f"{_UNDONE} {found}"
                if worst.code != finding.code or worst.primary != finding.primary
                else _IN_VAIN
            )
            self.undone[id(finding)] = replace(finding, fix=fix, notes=(*finding.notes, note))

    def _new_with(self, units: Sequence[Unit]) -> Sequence[Diagnostic]:
        """Return new findings with the fixes of some units; the old ones if nothing could be checked."""
        all_found = [one for unit in units for one in unit]
        texts, fixed = self._applied(self.files.sources, all_found)
        new: Sequence[Diagnostic] = all_found
        for _ in range(_MAX_ROUNDS):
            if not self._may_check():
                return all_found
            new = self._new(self.check(texts), fixed)
            follow = [one for one in new if one.fix is not None and one.fix.is_safe]
            if len(follow) < len(new) or not new:
                return new
            texts, _ = self._applied(texts, follow)
        return new

    def _may_check(self) -> bool:
        self.num_checks += 1
        num_characters = sum(len(source.text) for source in self.files.sources.values())
        return self.num_checks <= max(1, min(_MAX_CHECKS, _MAX_CHECKED_CHARACTERS // max(1, num_characters)))

    def _applied(
        self, sources: Mapping[str, SourceFile], findings: Sequence[Diagnostic]
    ) -> tuple[Mapping[str, SourceFile], Sequence[Diagnostic]]:
        """The texts with fixes, and the findings whose fixes they have."""
        texts: dict[str, SourceFile] = {}
        applied: list[Diagnostic] = []
        for name, source in sources.items():
            fixed = apply_fixes(source, findings, with_unsafe=False)
            texts[name] = SourceFile(name, fixed.text)
            applied.extend(fixed.applied)
        return texts, applied

    def _new(self, trial: Trial, fixed: Sequence[Diagnostic]) -> list[Diagnostic]:
        """The findings of a trial that were not there before, apart from the fixed ones."""
        has_lines = all(_keeps_lines(one) for one in fixed)
        left = Counter(_key(diagnostic, has_lines) for diagnostic in self.before.diagnostics)
        left.subtract(_key(one, has_lines) for one in fixed)
        places = {_line(one) for one in fixed}
        new: list[Diagnostic] = []
        for finding in trial.diagnostics:
            left[_key(finding, has_lines)] -= 1
            if left[_key(finding, has_lines)] >= 0:
                continue
            was_hidden = self.phase_of(finding) > self.before.reached
            if not was_hidden or not has_lines or not places.isdisjoint(_lines(finding)):
                new.append(finding)
        return new


def is_undone(diagnostic: Diagnostic) -> bool:
    """Whether a finding's fix was tried and found unsafe."""
    return any(note.startswith((_UNDONE, _IN_VAIN)) for note in diagnostic.notes)


def _keeps_lines(diagnostic: Diagnostic) -> bool:
    fix = diagnostic.fix
    return fix is None or fix.replacement.count("\n") == fix.span.end_line - fix.span.line


def _key(diagnostic: Diagnostic, has_lines: bool) -> tuple[str, str, int]:
    span = diagnostic.primary.span
    return diagnostic.code.code, span.file, span.line if has_lines else 0


def _lines(diagnostic: Diagnostic) -> Iterable[tuple[str, int]]:
    """The lines that a finding names."""
    return {(label.span.file, label.span.line) for label in (diagnostic.primary, *diagnostic.secondary)}
