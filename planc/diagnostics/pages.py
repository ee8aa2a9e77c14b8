"""The explain pages: one Markdown file per code, shipped with the package."""

from __future__ import annotations

from importlib import resources


def page(code: str) -> str | None:
    """The page of `code` (`P203`), or None when there is none."""
    entry = resources.files("planc.diagnostics") / "explain" / f"{code}.md"
    return entry.read_text(encoding="utf-8") if entry.is_file() else None


def names() -> dict[str, str]:
    """Every code by the name of its fault, as its page's title has it: `kv-heads-indivisible` of P402."""
    titles = (page(code) or "" for code in pages())
    found = (title.partition("\n")[0].removeprefix("# ").split(": ") for title in titles)
    return {name: code for code, name in found}


def pages() -> tuple[str, ...]:
    """Every code that has a page, sorted."""
    folder = resources.files("planc.diagnostics") / "explain"
    return tuple(sorted(entry.name[:-3] for entry in folder.iterdir() if entry.name.endswith(".md")))
