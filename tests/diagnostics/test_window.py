"""Long lines on narrow terminals, and characters that the terminal lacks."""

from __future__ import annotations

import pytest
from findings import ERROR

from planc.diagnostics import Label
from planc.diagnostics.human import HumanRenderer
from planc.diagnostics.wrap import num_cells, window
from planc.source import SourceFile, Span


def rendered(
    text: str,
    *,
    columns: tuple[int, int],
    width: int | None = None,
    encoding: str = "utf-8",
    other: tuple[int, int] | None = None,
) -> list[str]:
    """The line and its marks."""
    place = Span("x.plan", 1, columns[0], 1, columns[1])
    secondary = (Label(Span("x.plan", 1, other[0], 1, other[1]), ""),) if other else ()
    renderer = HumanRenderer({"x.plan": SourceFile("x.plan", text)}, width=width, encoding=encoding)
    lines = renderer.render([ERROR.at(place, "", secondary=secondary)]).split("\n")
    return lines[3:-4]


def under(line: str, marks: str, mark: str = "^") -> str:
    """What stands over the marks, cell by cell."""
    cells = "".join(character + "\0" * (num_cells(character) - 1) for character in line)
    return "".join(
        cell for cell, below in zip(cells, marks.ljust(len(cells)), strict=False) if below == mark
    ).replace("\0", "")


@pytest.mark.parametrize("width", [24, 40, 80, 200])
@pytest.mark.parametrize("filler", ["a", "数"])
@pytest.mark.parametrize("column", [1, 20, 60, 117, 118])
def test_window_holds_the_span_and_fits(width: int, filler: str, column: int) -> None:
    text = filler * (column - 1) + "XYZ" + filler * (117 - column + 1)
    line, marks = rendered(text, columns=(column, column + 3), width=width)
    assert num_cells(line) <= width
    assert under(line, marks) == "XYZ"


def test_line_that_fits_is_whole() -> None:
    line, _ = rendered("a" * 76, columns=(1, 2), width=80)
    assert line == "1 | " + "a" * 76


def test_cut_ends_show_dots() -> None:
    line, _ = rendered("a" * 300, columns=(150, 151), width=80)
    assert line.startswith("1 | ...a") and line.endswith("a...")


def test_span_longer_than_the_window_is_marked_to_its_end() -> None:
    line, marks = rendered("a" * 300, columns=(10, 290), width=80)
    assert set(under(line, marks)) == {"a"}
    assert len(marks) == len(line) - len("...")


def test_place_after_the_last_character_is_in_view() -> None:
    line, marks = rendered("a" * 300, columns=(301, 302), width=80)
    assert marks.index("^") == len(line)


def test_second_label_out_of_view_has_a_window_of_its_own() -> None:
    text = "X" + "a" * 298 + "Y"
    first, marks, second, other = rendered(text, columns=(1, 2), width=60, other=(300, 301))
    assert under(first, marks) == "X"
    assert under(second, other, "-") == "Y"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_what_the_encoding_lacks_takes_one_cell(encoding: str) -> None:
    line, marks = rendered('"数\ufffd" x', columns=(6, 7), encoding=encoding)
    assert line == '1 | "??" x'
    assert under(line, marks) == "x"


def test_tabs_keep_the_marks_in_place() -> None:
    line, marks = rendered("\ta\t= x", columns=(6, 7))
    assert under(line, marks) == "x"


@pytest.mark.parametrize("max_cells", range(1, 12))
def test_window_never_loses_its_character(max_cells: int) -> None:
    for first in range(100):
        assert window("a" * 100, first=first, max_cells=max_cells).has(first)
