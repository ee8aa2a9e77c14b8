"""Markup that is escaped by construction: text from a plan or a model can't become markup."""

from __future__ import annotations

from html import escape

from planc.figures.figure import Figure
from planc.tables import printable


class Html(str):
    """Markup. Any other string is text, and is escaped where it enters markup."""

    __slots__ = ()


_VOID = ("line", "meta", "path", "rect")


def markup(*parts: str) -> Html:
    """The parts in sequence, with text escaped and its control characters visible."""
    return Html("".join(part if isinstance(part, Html) else escape(printable(part)) for part in parts))


def element(name: str, /, *children: str, **attributes: str | float | None) -> Html:
    """An element. Attributes of None are left out; `_` in a name is `-`, and one at its end is dropped."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Html(f"<{name}{written}/>")
    return Html(f"<{name}{written}>{markup(*children)}</{name}>")


def _value(value: str | float) -> str:
    return escape(printable(value)) if isinstance(value, str) else f"{value:.6g}"


def figure(of: Figure) -> Html:
    """A figure, with its name and exact value for readers that are programs."""
    return element("data", of.text, value=str(of.value), data_figure=of.name)


def table(rows: list[tuple[str, ...]], *, header: tuple[str, ...] = (), caption: str = "") -> Html:
    """A table whose first column names its rows. It scrolls in itself if it is wider than the page."""
    head = element("thead", element("tr", *(element("th", cell, scope="col") for cell in header)))
    body = (
        element("tr", element("th", first, scope="row"), *(element("td", cell) for cell in others))
        for first, *others in rows
    )
    titled = element("caption", caption) if caption else Html("")
    found = element("table", titled, head if header else Html(""), element("tbody", *body))
    return scrolling(found, label=caption or "table")


def scrolling(child: Html, *, label: str) -> Html:
    """Render content that may be wider than the page. A region that scrolls must be reachable by keyboard."""
    return element("div", child, class_="scroll", tabindex="0", role="group", aria_label=label)


def details(summary: str, *children: str, is_open: bool = False) -> Html:
    """Render content that opens and closes on request, such as the table behind a picture."""
    return element("details", element("summary", summary), *children, open="" if is_open else None)


def paragraph(*children: str, kind: str | None = None) -> Html:
    return element("p", *children, class_=kind)
