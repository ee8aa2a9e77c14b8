"""A page read as a program reads it: its tables, its figures, its bars, its curves, what it could run."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

VOID = ("meta", "br", "col")


@dataclass
class Table:
    caption: str = ""
    rows: list[list[str]] = field(default_factory=list)
    """The cells of every row, the header's too, without empty ones."""
    bars: list[list[float]] = field(default_factory=list)
    """What is drawn in each row that has bars."""


@dataclass
class Read(HTMLParser):
    """The page, after `feed`."""

    tables: list[Table] = field(default_factory=list)
    figures: list[tuple[str, str, str]] = field(default_factory=list)
    """(name, value, text) of every <data>."""
    curves: list[dict[str, Any]] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)
    outline: list[str] = field(default_factory=list)
    titles: list[str] = field(default_factory=list)
    """Of parts of pictures."""
    attributes: list[tuple[str, str, str]] = field(default_factory=list)
    """(element, name, value) of all."""
    text: str = ""

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[tuple[str, dict[str, str]]] = []
        self._texts: list[str] = []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = self._note(tag, attrs)
        if tag == "rect" and "data-value" in found:
            self.tables[-1].bars[-1].append(float(found["data-value"]))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = self._note(tag, attrs)
        if tag in VOID:
            return
        self._open.append((tag, found))
        self._texts.append("")
        if tag == "table":
            self.tables.append(Table())
        if tag == "tr":
            self.tables[-1].rows.append([])
        if found.get("class") == "drawn":
            self.tables[-1].bars.append([])

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1][0] in ("script", "style"):
            self._texts[-1] += data
            return
        self.text += data
        self._texts = [text + data for text in self._texts]

    def handle_endtag(self, tag: str) -> None:
        opened, found = self._open.pop()
        assert opened == tag, f"<{opened}> ends as </{tag}>"
        text = " ".join(self._texts.pop().split()) if tag != "script" else self._texts.pop()
        match tag:
            case "td" | "th" if text:
                self.tables[-1].rows[-1].append(text)
            case "caption":
                self.tables[-1].caption = text
            case "data":
                self.figures.append((found["data-figure"], found["value"], text))
            case "script" if found.get("type") == "application/json":
                self.curves.append(json.loads(text))
            case "script":
                self.scripts.append(text)
            case "title":
                self.titles.append(text)
        if tag in ("h1", "h2", "h3", "caption", "figcaption", "summary"):
            self.outline.append(f"{tag}: {text}")

    def _note(self, tag: str, attrs: list[tuple[str, str | None]]) -> dict[str, str]:
        found = {name: value or "" for name, value in attrs}
        self.attributes.extend((tag, name, value) for name, value in found.items())
        return found

    def table(self, caption: str) -> Table:
        """The one table whose caption starts so."""
        (found,) = [one for one in self.tables if one.caption.startswith(caption)]
        return found


def read(page: str) -> Read:
    found = Read()
    found.feed(page)
    found.close()
    assert found._open == [], "every element ends"
    return found
