"""The page around sections: one file with its own styles and scripts, which asks no network for anything."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from planc.record import record
from planc.report.charts import CHART_CLASS
from planc.report.html import Html, element, markup


@record
class Section:
    """A part of a page with a heading; `anchor` is what links to it are called."""

    anchor: str
    title: str
    body: Html


def page(title: str, *, heading: Html, sections: list[Section]) -> str:
    """A whole HTML document. Without a chart, it has no script."""
    body = markup(*(_section(section) for section in sections))
    has_charts = f'class="{CHART_CLASS}"' in body
    styles = _asset("page.css") + (_asset("uplot/uPlot.min.css") if has_charts else "")
    # The license must be in every copy of the library.
    license = f"/*\n{_asset('uplot/LICENSE')}\n*/\n"
    library, own = _asset("uplot/uPlot.iife.min.js"), _asset("page.js")
    script = f"{license}{library}\n{own}" if has_charts else ""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(script, styles)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Html(styles)),
    )
    links = (element("li", element("a", section.title, href=f"#{section.anchor}")) for section in sections)
    shown = element(
        "body",
        element("a", "Skip to the content", href="#content", class_="skip"),
        element("header", element("h1", title), heading),
        element("nav", element("ul", *links), aria_label="Sections") if len(sections) > 1 else "",
        element("main", body, id="content", tabindex="-1"),
        element("script", Html(script)) if script else "",
    )
    return f"<!doctype html>\n{element('html', head, shown, lang='en')}\n"


def _section(one: Section) -> Html:
    title = element("h2", one.title, id=f"{one.anchor}-title")
    return element("section", title, one.body, id=one.anchor, aria_labelledby=f"{one.anchor}-title")


def _policy(script: str, styles: str) -> str:
    """Nothing is loaded, sent or framed, and only this script and these styles apply, by their hashes."""
    allowed = [f"script-src {_hash(script)}"] if script else []
    allowed.append(f"style-src {_hash(styles)}")
    return "; ".join(("default-src 'none'", *allowed, "base-uri 'none'", "form-action 'none'"))


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _asset(name: str) -> str:
    return files("planc.report").joinpath("assets", *name.split("/")).read_text(encoding="utf-8")
