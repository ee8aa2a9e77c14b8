"""The part of a long line that a person is shown."""

from __future__ import annotations

from planc.diagnostics.visible import num_cells
from planc.record import record

_CUT = "..."


@record
class Window:
    """Characters [start, end) of `line`, three dots where something is left out."""

    line: str
    start: int
    end: int

    @property
    def text(self) -> str:
        before = _CUT if self.start > 0 else ""
        after = _CUT if self.end < len(self.line) else ""
        return f"{before}{self.line[self.start : self.end]}{after}"

    def has(self, first: int) -> bool:
        """Whether the character at `first` is shown; the place after the last one counts as shown."""
        return self.start <= first < self.end or first >= len(self.line) == self.end

    def marks(self, first: int, end: int, mark: str) -> tuple[str, str]:
        """The space and the marks under characters [first, end), of which the window has the first."""
        shown = min(first, len(self.line))
        indent = (len(_CUT) if self.start > 0 else 0) + num_cells(self.line[self.start : shown])
        return " " * indent, mark * max(1, num_cells(self.line[shown : max(shown, min(end, self.end))]))


def window(line: str, *, first: int, max_cells: int) -> Window:
    """The whole line where it fits, else a part with the character at `first`, most of it after that one."""
    if num_cells(line) <= max_cells:
        return Window(line, 0, len(line))
    budget = max(1, max_cells - 2 * len(_CUT))
    first = min(first, len(line))
    start = _walk_back(line, first, budget // 3)
    end = start
    cells = 0
    while end < len(line) and (cells := cells + num_cells(line[end])) <= budget:
        end += 1
    if end == len(line):  # near the end of the line there is room before instead
        start = _walk_back(line, end, budget)
    return Window(line, start, end)


def _walk_back(line: str, place: int, max_cells: int) -> int:
    """How far before `place` a window of `max_cells` cells that ends there starts."""
    cells = 0
    while place > 0 and (cells := cells + num_cells(line[place - 1])) <= max_cells:
        place -= 1
    return place
