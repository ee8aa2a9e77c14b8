"""Diagnostics as a person reads them: the line, the caret, the reason, the way out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from planc.diagnostics.model import Diagnostic, Label, Severity
from planc.diagnostics.visible import encodable, visible
from planc.diagnostics.window import window
from planc.source import SourceFile

_COLOURS = {Severity.ERROR: "31", Severity.WARNING: "33", Severity.NOTE: "36"}
_MAX_LINE_CELLS = 200
_MIN_LINE_CELLS = 20


@dataclass(frozen=True, slots=True)
class HumanRenderer:
    """Renders against the texts in `sources`; a label on an unknown source shows its position only.

    `width` is the terminal's, for lines of a plan that are longer; without one they are cut where nobody
    would read on. `encoding` is the stream's: what it lacks is shown as `?`.
    """

    sources: Mapping[str, SourceFile]
    colour: bool = False
    width: int | None = None
    encoding: str = "utf-8"

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
            lines.append(f"{' ' * width}{self._paint(arrow, '34')} {self._shown(str(start))}")
            lines.extend(self._snippet(group, width, diagnostic.primary, colour))
        lines.extend(f"{' ' * width} = {self._shown(note)}" for note in diagnostic.notes)
        lines.append(self._help(diagnostic))
        return "\n".join(lines) + "\n"

    def _help(self, diagnostic: Diagnostic) -> str:
        more = f"planc explain {diagnostic.code.code}"
        if diagnostic.fix:
            more = f"{'safe' if diagnostic.fix.is_safe else 'unsafe'} fix; {more}"
        if diagnostic.help is None:
            return f"{self._paint('help', '1;32')}: {more}"
        return f"{self._paint('help', '1;32')}: {self._shown(diagnostic.help)}  ({more})"

    def _snippet(self, group: Sequence[Label], width: int, primary: Label, colour: str) -> Iterable[str]:
        gutter = self._paint(" " * width + " |", "34")
        source = self.sources.get(group[0].span.file)
        if source is None:
            yield from (f"{gutter} {self._shown(label.text)}" for label in group if label.text)
            return
        yield gutter
        texts = source.lines
        max_cells = max(_MIN_LINE_CELLS, self.width - width - 3) if self.width else _MAX_LINE_CELLS
        number, shown = 0, window("", first=0, max_cells=max_cells)
        for label in sorted(group, key=lambda label: (label.span.line, label is not primary)):
            span, first = label.span, label.span.column - 1
            if span.line != number or not shown.has(first):
                number = span.line
                line = self._shown(texts[number - 1].rstrip("\r").expandtabs(1))
                shown = window(line, first=first, max_cells=max_cells)
                yield f"{self._paint(f'{number:>{width}} |', '34')} {shown.text}".rstrip()
            end = span.end_column - 1 if span.end_line == span.line else len(shown.line)
            indent, marks = shown.marks(first, end, "^" if label is primary else "-")
            paint = colour if label is primary else "34"
            yield f"{gutter} {indent}{self._paint(f'{marks} {self._shown(label.text)}'.rstrip(), paint)}"

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
    """`Found 2 errors, 1 warning.`"""
    counts = [
        f"{number} {severity}{'s' if number != 1 else ''}"
        for severity in Severity
        if (number := sum(diagnostic.severity is severity for diagnostic in diagnostics))
    ]
    return f"Found {', '.join(counts)}." if counts else "No findings."
