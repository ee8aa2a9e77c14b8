"""The text that an import prints, the same as data, and the table of known keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from planc.import_configs.detect import KINDS
from planc.import_configs.draft import Imported
from planc.import_configs.importing import Result
from planc.import_configs.kind import Kind, Note, NoteKind, Row
from planc.import_configs.leaves import Leaf, written
from planc.tables import plural, render_table

_HEADINGS = {
    NoteKind.CHANGED: "TRAINED OTHERWISE",
    NoteKind.WRONG: "CAN'T BE RIGHT",
    NoteKind.SET_ASIDE: "NOT IN THE PLAN",
    NoteKind.ADDED: "NOT IN THE FILE",
}

_LEFT_OUT = (NoteKind.SET_ASIDE, NoteKind.CHANGED)


def notes_text(result: Result) -> str:
    """All notes, by what they are about."""
    num_all = len(result.imported) + sum(note.kind in _LEFT_OUT for note in result.notes)
    accounted: tuple[Imported | Note, ...] = (*result.imported, *result.notes)
    names = " and ".join(dict.fromkeys(part.file for part in accounted if part.file))
    counts = f"{len(result.imported)} of {plural(num_all, 'key')} in the plan"
    parts = [f"{names}: {result.kind.title}, {result.job}, {counts}\n"]
    for kind, title in _HEADINGS.items():
        rows = [_row(group) for group in _by_cause(note for note in result.notes if note.kind is kind)]
        if rows:
            parts.append(f"\n{title}\n{render_table(rows, indent='  ')}")
    return "".join(parts)


def _by_cause(notes: Iterable[Note]) -> Iterable[list[Note]]:
    """Notes with the same reason together, where the first of them is."""
    groups: dict[tuple[str, str, str], list[Note]] = {}
    for note in notes:
        # Two settings may share a default without having one cause.
        key = "" if note.line is not None else note.key
        groups.setdefault((note.file, note.text, key), []).append(note)
    return groups.values()


_MOST_NAMED = 3


def _row(notes: Sequence[Note]) -> tuple[str, ...]:
    first = notes[0]
    place = (f"{first.file}:{first.line}",) if first.line is not None else ()
    more = len(notes) - _MOST_NAMED
    keys = ", ".join(dict.fromkeys(note.key for note in notes[:_MOST_NAMED]))
    return (*place, f"{keys} and {more} more" if more > 0 else keys, first.text)


def errors_text(result: Result, *, name: str) -> str:
    """The missing facts, and the keys that no plan trains; `name` is of the first file."""
    lines = []
    for one in result.missing:
        place = f"{one.at.file}:{one.at.line}" if one.at is not None else name
        lines.append(f"error: {place}: {one.what}\nhelp: {one.help}\n")
    alike = _alike(result.refused)
    for key, note in alike.items():
        place = f"{note.file}:{note.line}" if note.line is not None else name
        lines.append(f"error: {place}: no plan trains what `{key}` asks for: {note.text}\n")
        lines.append(f"help: pass --accept {key} to train without it\n")
    num_errors = len(result.missing) + len(alike)
    return "".join(lines) + f"Found {plural(num_errors, 'error')}: no plan is written.\n"


def _alike(notes: Sequence[Note]) -> dict[str, Note]:
    """The first note by what to accept: a key, or its table if the same holds of several of its keys."""
    tables = Counter((note.key.partition(".")[0], note.text) for note in notes)
    first_notes: dict[str, Note] = {}
    for note in notes:
        table = note.key.partition(".")[0]
        is_table = tables[table, note.text] > 1 and all(
            text == note.text for at, text in tables if at == table
        )
        first_notes.setdefault(table if is_table else note.key, note)
    return first_notes


def result_data(result: Result, *, name: str) -> dict[str, Any]:
    """Everything as data; `name` is of the first file."""
    return {
        "format_version": 2,
        "file": name,
        "kind": result.kind.name,
        "training": result.job,
        "plan": result.text,
        "missing": [{**_place(one.at), "message": one.what, "help": one.help} for one in result.missing],
        "refused": [{"key": note.key, **_place(note), "message": note.text} for note in result.refused],
        "imported": [{"key": one.key, **_place(one), "setting": one.place} for one in result.imported],
        "notes": [
            {"kind": str(note.kind), "key": note.key, **_place(note), "message": note.text}
            for note in result.notes
        ],
    }


def _place(at: Note | Imported | Leaf | None) -> dict[str, Any]:
    return {"file": at.file or None if at else None, "line": at.line if at else None}


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
