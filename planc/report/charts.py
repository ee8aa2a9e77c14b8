"""Sizes as bars, and curves over steps, each with its values as a table."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from math import isfinite

from planc.record import record
from planc.report.html import Html, details, element, table

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


CHART_CLASS = "chart"
MAX_POINTS = 2_000
"""The most points of a curve, a few per pixel of a wide screen."""
_FULL_CURVES, _MIN_POINTS = 4, 200
"""The number of curves from which on each has fewer points, and the fewest that it has."""
_MAX_ROWS = 50
"""The most rows of the table behind a curve."""


@record
class Curve:
    """Values at steps, in order. `is_line` is false for single points."""

    label: str
    points: tuple[tuple[int, float], ...]
    is_line: bool = True


def chart(
    title: str,
    curves: Sequence[Curve],
    *,
    unit: str = "",
    written: Callable[[float], str],
    note: str = "",
    by: str = "step",
) -> Html:
    """Curves over steps, or over what `by` names; `written` formats a value of the table behind them."""
    # Curves of several runs may share no step: all of their points are rows.
    most = max(_MIN_POINTS, MAX_POINTS * _FULL_CURVES // max(len(curves), _FULL_CURVES))
    thinned = [thin(curve, most=most) for curve in curves]
    steps = sorted({step for one in thinned for step, _ in one.points})
    columns = [dict(one.points) for one in thinned]
    data = {
        "unit": unit,
        "by": by,
        "data": [steps, *([_number(column.get(step)) for step in steps] for column in columns)],
        "series": [{"label": one.label, "line": one.is_line} for one in thinned],
    }
    left_out = sum(len(curve.points) for curve in curves) - sum(len(one.points) for one in thinned)
    fewer = f"; of each few steps the lowest and the highest value, {left_out:_} others omitted"
    keys = "Left and right arrow keys read values; + and - zoom."
    host = element(
        "div",
        element("script", _json(data), type="application/json"),
        class_=CHART_CLASS,
        tabindex="0",
        role="group",
        aria_label=f"{title}, by {by}. {keys}",
    )
    caption = f"{title}{f', {unit}' if unit else ''}{note}{fewer if left_out else ''}"
    chosen, places = _chosen(steps), "steps" if by == "step" else "points"
    rows = [
        (f"{step:_}", *(written(column[step]) if step in column else "" for column in columns))
        for step in chosen
    ]
    some = f"{len(chosen)} of " if len(chosen) < len(steps) else ""
    titled = f"{title}: {some}{len(steps):_} {places}"
    behind = table(rows, header=(by, *(one.label for one in thinned)), caption=titled)
    return element(
        "figure", element("figcaption", caption), host, element("output"), details("As a table", behind)
    )


def thin(curve: Curve, *, most: int = MAX_POINTS) -> Curve:
    """The curve itself, or of each stretch of its steps the lowest and the highest value."""
    if len(curve.points) <= most:
        return curve
    length = -(-len(curve.points) // (most // 2))
    kept: list[tuple[int, float]] = []
    for start in range(0, len(curve.points), length):
        stretch = curve.points[start : start + length]
        ends = min(stretch, key=_value), max(stretch, key=_value)
        kept.extend(sorted(set(ends)))
    return Curve(curve.label, tuple(kept), curve.is_line)


def _value(point: tuple[int, float]) -> float:
    """NaN counts as the highest: it must stay visible."""
    return point[1] if isfinite(point[1]) else float("inf")


def _number(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


def _chosen(steps: Sequence[int]) -> list[int]:
    """The first, the last, and some between, evenly."""
    if len(steps) <= _MAX_ROWS:
        return list(steps)
    last = _MAX_ROWS - 1
    return [steps[index * (len(steps) - 1) // last] for index in range(_MAX_ROWS)]


def _json(data: object) -> Html:
    """JSON that can't end the element that it is in."""
    return Html(json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"))
