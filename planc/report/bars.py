"""Sizes as bars: a table with its own picture in every row."""

from __future__ import annotations

from collections.abc import Sequence

from planc.record import record
from planc.report.html import Html, element

_WIDTH = 1000


@record
class Bar:
    """A row: its name, its text, and the values to draw: one, or before and after."""

    name: str
    text: str
    values: tuple[float, ...]
    is_total: bool = False


def bars(rows: Sequence[Bar], *, caption: str, scale: float = 0.0, mark: float | None = None) -> Html:
    """The bars, the largest as wide as the column unless `scale` is larger; `mark` is a limit, as a line."""
    full = max([scale, mark or 0, *(value for row in rows for value in row.values)]) or 1
    body = (
        element(
            "tr",
            element("th", row.name, scope="row"),
            element("td", _drawn(row, full=full, mark=mark), class_="drawn"),
            element("td", row.text, class_="amount"),
            class_="total" if row.is_total else None,
        )
        for row in rows
    )
    return element("table", element("caption", caption), element("tbody", *body), class_="bars")


def _drawn(row: Bar, *, full: float, mark: float | None) -> Html:
    height = 12 / len(row.values)
    kinds = ("new",) if len(row.values) == 1 else ("old", "new")
    drawn = [
        element(
            "rect",
            x=0,
            y=index * height,
            width=_WIDTH * value / full,
            height=height,
            class_=kind,
            data_value=repr(value),
        )
        for index, (kind, value) in enumerate(zip(kinds, row.values, strict=True))
    ]
    if mark is not None:
        x = _WIDTH * mark / full
        drawn.append(element("line", x1=x, x2=x, y1=0, y2=12, class_="mark"))
    return element(
        "svg",
        *drawn,
        viewBox=f"0 0 {_WIDTH} 12",
        preserveAspectRatio="none",
        aria_hidden="true",
        class_="bar",
    )
