"""The explain pages: one Markdown file per code, shipped with the package."""

from __future__ import annotations

from pathlib import Path

DOCUMENTATION = "https://planc.readthedocs.io/en/latest"
"""The address of the published `docs/`, here alone; `pyproject.toml` repeats it, and a test compares."""

_FOLDER = Path(__file__).parent / "explain"


def page(code: str) -> str | None:
    """The page of `code` (`P203`), or None when there is none."""
    file = _FOLDER / f"{code}.md"
    return file.read_text(encoding="utf-8") if file.is_file() else None


def url(code: str) -> str:
    """Return the address of the page of `code`."""
    return f"{DOCUMENTATION}/errors/{code}.html"


def names() -> dict[str, str]:
    """Every code by the name of its fault, as its page's title has it: `kv-heads-indivisible` of P402."""
    titles = (page(code) or "" for code in pages())
    found = (title.partition("\n")[0].removeprefix("# ").split(": ") for title in titles)
    return {name: code for code, name in found}


def pages() -> tuple[str, ...]:
    """Every code that has a page, sorted."""
    return tuple(sorted(file.stem for file in _FOLDER.glob("*.md")))
