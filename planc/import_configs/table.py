"""The rows of all kinds as Markdown tables."""

from __future__ import annotations

from collections.abc import Iterator

from planc.import_configs.kind import Kind, Row
from planc.import_configs.leaf import written
from planc.import_configs.registry import KINDS

_INTRODUCTION = """\
# Keys that `planc import` knows

A key goes to a setting of the plan, becomes a note with the reason, or stops the import, unless
`--accept KEY` trains without it. Other keys stop it too, and so does a value that decides what is trained
and that a plan can't have. `*` is any key, or any rest of one; `**` is everything below."""


def keys_page() -> str:
    """A page with one table for each kind."""
    return f"{_INTRODUCTION}\n\n" + "\n".join(_section(kind) for kind in KINDS)


def _section(kind: Kind) -> str:
    rows = "".join(f"| `{row.key}` | {_meaning(row)} |\n" for row in kind.rows)
    formats = " or ".join(name.upper() for name in kind.formats)
    parts = [f"## {kind.title}\n", f"`--from {kind.name}`, as {formats}.\n"]
    if kind.defaults:
        taken = "; ".join(f"`{fact.place}` {fact.show(value)}" for fact, value in kind.defaults)
        parts.append(f"Where a file is silent, the tool's own defaults: {taken}.\n")
    if kind.spares_norms:
        parts.append("Norms and biases do not decay.\n")
    parts.append(f"| key | in a plan |\n| --- | --- |\n{rows}")
    return "\n".join(parts)


def _meaning(row: Row) -> str:
    if row.fact is not None:
        return f"`{row.fact.place}`"
    why = row.reason or f"stops the import: {row.change}"
    return "; ".join((why, *_idle(row))).replace("|", "\\|")


def _idle(row: Row) -> Iterator[str]:
    if row.harmless:
        yield f"{' and '.join(f'`{written(value)}`' for value in row.harmless)} asks for what a plan does"
