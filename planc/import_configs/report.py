"""What an import prints: notes by line, what is missing, and both as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from planc.import_configs.importing import Result
from planc.import_configs.kind import Note, NoteKind
from planc.tables import plural, render_table

_HEADINGS = {
    NoteKind.CHANGED: "TRAINED OTHERWISE",
    NoteKind.WRONG: "CAN'T BE RIGHT",
    NoteKind.SET_ASIDE: "NOT IN THE PLAN",
    NoteKind.ADDED: "NOT IN THE FILE",
}

_LEFT_OUT = (NoteKind.SET_ASIDE, NoteKind.CHANGED)


def notes_text(result: Result, *, name: str) -> str:
    """All notes, by what they are about."""
    num_all = len(result.imported) + sum(note.kind in _LEFT_OUT for note in result.notes)
    heading = f"{name}: {result.kind.title}, {len(result.imported)} of {plural(num_all, 'key')} in the plan\n"
    parts = [heading]
    for kind, title in _HEADINGS.items():
        rows = [_row(note, name=name) for note in result.notes if note.kind is kind]
        if rows:
            parts.append(f"\n{title}\n{render_table(rows, indent='  ')}")
    return "".join(parts)


def _row(note: Note, *, name: str) -> tuple[str, ...]:
    place = (f"{name}:{note.line}",) if note.line is not None else ()
    return (*place, note.key, note.text)


def errors_text(result: Result, *, name: str) -> str:
    """What is missing, and what no plan trains, as `planc: error` prints what can't be done."""
    lines = []
    for one in result.missing:
        place = f"{name}:{one.line}" if one.line is not None else name
        lines.append(f"error: {place}: {one.what}\nhelp: {one.help}\n")
    alike = _alike(result.refused)
    for key, note in alike.items():
        lines.append(f"error: {name}:{note.line}: no plan trains what `{key}` asks for: {note.text}\n")
        lines.append(f"help: pass --accept {key} to train without it\n")
    num_errors = len(result.missing) + len(alike)
    return "".join(lines) + f"Found {plural(num_errors, 'error')}: no plan is written.\n"


def _alike(notes: Sequence[Note]) -> dict[str, Note]:
    """The first note by what to accept: a key, or its table if the same holds of several of its keys."""
    tables = Counter((note.key.partition(".")[0], note.text) for note in notes)
    found: dict[str, Note] = {}
    for note in notes:
        table = note.key.partition(".")[0]
        is_table = tables[table, note.text] > 1 and all(
            text == note.text for at, text in tables if at == table
        )
        found.setdefault(table if is_table else note.key, note)
    return found


def result_data(result: Result, *, name: str) -> dict[str, Any]:
    """Everything as data."""
    return {
        "format_version": 1,
        "file": name,
        "kind": result.kind.name,
        "plan": result.text,
        "missing": [{"line": one.line, "message": one.what, "help": one.help} for one in result.missing],
        "refused": [{"key": note.key, "line": note.line, "message": note.text} for note in result.refused],
        "imported": [{"key": one.key, "line": one.line, "setting": one.place} for one in result.imported],
        "notes": [
            {"kind": str(note.kind), "key": note.key, "line": note.line, "message": note.text}
            for note in result.notes
        ],
    }
