"""Diagnostics for people: the line, the caret, the reason and the help."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from planc.diagnostics.diagnostic import Applicability, Diagnostic, Fix, Label, Severity
from planc.diagnostics.wrap import encodable, num_cells, visible, window, wrap
from planc.record import record
from planc.source import SourceFile, Span

_COLOURS = {Severity.ERROR: "31", Severity.WARNING: "33", Severity.NOTE: "36"}
_MAX_LINE_CELLS = 200
_MIN_LINE_CELLS = 20
_MAX_TEXT_CELLS = 120
"""The width of prose if the terminal's width is unknown."""
_MIN_TEXT_CELLS = 30
"""The room that a label's text needs to the right of its marks; otherwise it goes below them."""


@record
class HumanRenderer:
    """Renders against the texts in `sources`; a label on an unknown source shows its position only.

    `width` is the terminal's: longer lines of a plan are cut, longer texts wrap. Without a width, limits for
    reading apply. `encoding` is the stream's: what it lacks is shown as `?`. `observed`
    names the sources that are not files but what was seen of a machine: there lines and columns mean nothing.
    """

    sources: Mapping[str, SourceFile]
    colour: bool = False
    width: int | None = None
    encoding: str = "utf-8"
    observed: Collection[str] = ()

    def render(self, diagnostics: Sequence[Diagnostic]) -> str:
        """All diagnostics, blank lines between, then the count."""
        blocks = [self._diagnostic(diagnostic) for diagnostic in diagnostics]
        if blocks:
            blocks.append(self._paint(count(diagnostics), "1") + "\n")
        return "\n".join(blocks)

    def _diagnostic(self, diagnostic: Diagnostic) -> str:
        colour = _COLOURS[diagnostic.severity]
        title = self._paint(f"{diagnostic.severity}[{diagnostic.code.code}]", f"1;{colour}")
        groups = _by_place((diagnostic.primary, *diagnostic.secondary))
        width = max((len(str(label.span.line)) for group in groups for label in group), default=1)
        lines = [f"{title}: {self._paint(diagnostic.code.summary, '1')}"]
        for index, group in enumerate(groups):
            arrow = "-->" if index == 0 else ":::"
            start = diagnostic.primary.span if index == 0 else group[0].span
            place = start.file if start.file in self.observed or start.is_start else str(start)
            lines.append(f"{' ' * width}{self._paint(arrow, '34')} {self._shown(place)}")
            lines.extend(self._snippet(group, width, diagnostic.primary, colour))
        for note in diagnostic.notes:
            lines.extend(self._hanging(note, first=f"{' ' * width} = "))
        lines.extend(self._template(diagnostic.fix, width))
        lines.extend(self._help(diagnostic))
        return "\n".join(lines) + "\n"

    def _help(self, diagnostic: Diagnostic) -> Iterable[str]:
        more = f"planc explain {diagnostic.code.code}"
        if diagnostic.fix:
            more = f"{diagnostic.fix.applicability} fix; {more}"
        text, tail = (more, "") if diagnostic.help is None else (diagnostic.help, f"({more})")
        first, *rest = self._hanging(text, first="help: ", tail=tail)
        yield f"{self._paint('help', '1;32')}{first.removeprefix('help')}"
        yield from rest

    def _template(self, fix: Fix | None, width: int) -> Iterable[str]:
        """The template of a display-only fix, for the author to fill in."""
        if fix is None or fix.applicability is not Applicability.DISPLAY_ONLY:
            return
        for line in fix.replacement.strip("\n").split("\n"):
            yield f"{' ' * width} {self._paint('+', '32')} {self._shown(line)}".rstrip()

    def _hanging(self, text: str, *, first: str, tail: str = "") -> Iterable[str]:
        """A text in lines that fit: `first` before it, as much space before those that follow."""
        cells = max(_MIN_LINE_CELLS, (self.width or _MAX_TEXT_CELLS) - len(first))
        lines = wrap(self._shown(text), cells=cells, tail=tail)
        return [f"{' ' * len(first) if number else first}{line}" for number, line in enumerate(lines)]

    def _snippet(self, group: Sequence[Label], width: int, primary: Label, colour: str) -> Iterable[str]:
        gutter = self._paint(" " * width + " |", "34")
        source = self.sources.get(group[0].span.file)
        if source is None:
            yield from (f"{gutter} {line}" for label in group for line in self._lines(label.text, width + 3))
            return
        for label in (one for one in group if one.span.is_start):
            yield from (f"{gutter} {line}" for line in self._lines(label.text, width + 3))
        places = [one for one in group if not one.span.is_start]
        if places:
            yield gutter
        texts = source.lines
        max_cells = max(_MIN_LINE_CELLS, self.width - width - 3) if self.width else _MAX_LINE_CELLS
        number, shown = 0, window("", first=0, max_cells=max_cells)
        for label in sorted(places, key=lambda label: (label.span.line, label is not primary)):
            span, first = label.span, label.span.column - 1
            if span.line != number or not shown.has(first):
                yield from self._between(number, span, texts, width)
                number = span.line
                line = self._shown(texts[number - 1].rstrip("\r").expandtabs(1))
                shown = window(line, first=first, max_cells=max_cells)
                yield self._numbered(span, number, shown.text, width)
            end = span.end_column - 1 if span.end_line == span.line else len(shown.line)
            indent, marks = shown.marks(first, end, "^" if label is primary else "-")
            paint = colour if label is primary else "34"
            yield from (f"{gutter} {line}" for line in self._marked(label.text, indent, marks, width, paint))

    def _between(self, number: int, span: Span, texts: Sequence[str], width: int) -> Iterable[str]:
        """The only line between two that are shown, or `...` in place of several."""
        if number == 0 or span.line <= number + 1:
            return
        if span.line > number + 2 or span.file in self.observed:
            yield self._paint("...", "34")
        else:
            line = self._shown(texts[number].rstrip("\r").expandtabs(1))
            cells = max(_MIN_LINE_CELLS, self.width - width - 3) if self.width else _MAX_LINE_CELLS
            yield self._numbered(span, number + 1, window(line, first=0, max_cells=cells).text, width)

    def _numbered(self, span: Span, number: int, text: str, width: int) -> str:
        """A line of a source after its number."""
        shown = "" if span.file in self.observed else number
        return f"{self._paint(f'{shown:>{width}} |', '34')} {text}".rstrip()

    def _marked(self, text: str, indent: str, marks: str, width: int, paint: str) -> Iterable[str]:
        """The marks of a label with its text next to them, or below them if there is too little room."""
        room = (self.width or _MAX_TEXT_CELLS) - width - 3
        before = len(indent) + len(marks) + 1
        is_beside = room - before >= min(_MIN_TEXT_CELLS, num_cells(text))
        if not is_beside:
            yield f"{indent}{self._paint(marks, paint)}"
            before = min(len(indent), max(0, room - 2 * _MIN_TEXT_CELLS))
        for number, line in enumerate(self._lines(text, width + 3 + before) or ("",)):
            if is_beside and number == 0:
                yield f"{indent}{self._paint(f'{marks} {line}'.rstrip(), paint)}"
            else:
                yield f"{' ' * before}{self._paint(line, paint)}"

    def _lines(self, text: str, before: int) -> tuple[str, ...]:
        """A text in lines that fit after as many cells as come before it; no lines for an empty text."""
        if not text:
            return ()
        cells = max(_MIN_LINE_CELLS, (self.width or _MAX_TEXT_CELLS) - before)
        return wrap(self._shown(text), cells=cells)

    def _shown(self, text: str) -> str:
        return encodable(visible(text), self.encoding)

    def _paint(self, text: str, code: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self.colour else text


def _by_place(labels: Sequence[Label]) -> list[list[Label]]:
    """Labels grouped by file, the primary's file first."""
    groups: dict[str, list[Label]] = {}
    for label in labels:
        groups.setdefault(label.span.file, []).append(label)
    return list(groups.values())


def count(diagnostics: Sequence[Diagnostic]) -> str:
    """`Found 2 errors, 1 warning.`, and how many of them have a safe fix."""
    counts = [
        f"{number} {severity}{'s' if number != 1 else ''}"
        for severity in Severity
        if (number := sum(diagnostic.severity is severity for diagnostic in diagnostics))
    ]
    num_fixable = sum(diagnostic.fix is not None and diagnostic.fix.is_safe for diagnostic in diagnostics)
    fixable = f" ({num_fixable} fixable with `planc check --fix`)" if num_fixable else ""
    return f"Found {', '.join(counts)}{fixable}." if counts else "No findings."
