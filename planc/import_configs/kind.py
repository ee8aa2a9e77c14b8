"""A kind of config: its rows of keys, how it is recognized, and what it has by default."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any

from planc.import_configs.facts import Fact
from planc.import_configs.leaves import Leaf, Value
from planc.inventory.schema import Inventory
from planc.record import record


@record
class Row:
    """A key and its counterpart: a fact, or why there is none, as a reason or as a change of the training."""

    key: str
    """Dotted; `*` is any one key, `lora_*` one by its start, and `**` at the end all below."""
    fact: Fact | None = None
    reason: str = ""
    """The reason that a key has none, if it decides nothing about what is trained."""
    change: str = ""
    """The reason that a key has none, if something else would be trained without it: the import stops."""
    read: Callable[[Value], Any] | None = None
    """Reads the value where the fact's own reader does not fit this key."""
    opens: Fact | None = None
    """The fact that the key leaves open if nothing else gives it: an error for that points here."""
    harmless: tuple[Any, ...] = ()
    """Values that ask for what a plan does anyway."""
    names: str = ""
    """The kind of the file that the value names: with such a file, the key asks for nothing more."""
    implies: tuple[tuple[Fact, Any], ...] = ()
    """Facts that the tool takes if the file has this key, and no other that gives them."""


class NoteKind(StrEnum):
    CHANGED = "changed"
    """A key or a value that no plan has, and without which something else would be trained."""
    SET_ASIDE = "set aside"
    """A key without a counterpart."""
    WRONG = "wrong"
    """A value that can't be right in the file."""
    ADDED = "added"
    """A line that the plan has and the file does not."""


@record
class Note:
    kind: NoteKind
    key: str
    text: str
    line: int | None = None
    file: str = ""


def note(kind: NoteKind, leaf: Leaf, text: str) -> Note:
    """A note on a key of a file."""
    return Note(kind, leaf.key, text, leaf.line, leaf.file)


def under(prefix: str, rows: Iterable[Row]) -> tuple[Row, ...]:
    """Rows of a table that is below another key."""
    return tuple(replace(row, key=f"{prefix}.{row.key}") for row in rows)


Faults = Callable[[Mapping[str, Leaf]], Iterator[Note]]
"""A function from a file's leaves to what can't be right in it."""


def no_faults(leaves: Mapping[str, Leaf]) -> Iterator[Note]:
    return iter(())


@record(kw_only=True)
class Kind:
    name: str
    """On the command line."""
    title: str
    formats: tuple[str, ...]
    marks: tuple[str, ...]
    """Keys or starts of keys that only this kind has; a file with more of one kind's is of it."""
    rows: tuple[Row, ...]
    is_part: bool = False
    """Whether it has a part of a training: where another file has the rest, both are read together."""
    extends: tuple[str, ...] = ()
    """Marks of a kind that this one adds keys to: they count too, once there is one of its own."""
    own_rows: Callable[[Mapping[str, Leaf]], tuple[Row, ...]] = lambda leaves: ()
    """Rows of one file, before the others: of keys whose meaning depends on the file's other keys."""
    defaults: tuple[tuple[Fact, Any], ...] = ()
    """Facts that the tool takes if a file does not give them."""
    automatic: tuple[tuple[Fact, Any], ...] = ()
    """The value that the launching program fills in for `auto` by default."""
    warmup: tuple[float, int] = (0.0, 0)
    """The share of all steps that the tool warms up for where a file is silent, and at most how many."""
    warms_from_zero: bool = True
    """Whether step k of w warm-up steps has (k - 1) / w of the peak, where a plan's has k / w."""
    least_batch: int = 0
    """The sequences of a step that a silent file accumulates to, at least."""
    checks: Callable[[Mapping[str, Leaf], Inventory | None], Iterator[Note]] = lambda leaves, inventory: iter(
        ()
    )
    """Report a model other than the plan's, by the file's sizes."""
    spares_norms: bool = False
    """Whether its weight decay leaves out norms and biases, as transformers' Trainer does."""
    implied: tuple[tuple[Fact, Any], ...] = ()
    """Facts that every file of the kind implies."""
    adapts_by_peft: bool = False
    """Whether peft chooses the adapted layers where a file is silent."""
    tells_chats_by_columns: bool = False
    """Whether it tells conversations from documents by the columns of the data."""
    faults: Faults = no_faults


def wrong(leaf: Leaf, text: str) -> Note:
    return note(NoteKind.WRONG, leaf, text)


def find_row(rows: Iterable[Row], leaf: Leaf) -> Row | None:
    """The row of a leaf: one with its own key first, else the first pattern that fits."""
    fitting = [row for row in rows if _fits(row.key, leaf.path)]
    return min(fitting, key=lambda row: "*" in row.key) if fitting else None


def _fits(pattern: str, path: tuple[str, ...]) -> bool:
    if pattern == ".".join(path):
        return True
    if "*" not in pattern:
        return False
    parts = pattern.split(".")
    if parts[-1] == "**":
        parts = parts[:-1]
        path = path[: len(parts)] if len(path) >= len(parts) else path
    return len(parts) == len(path) and all(map(_matches, parts, path))


def _matches(part: str, name: str) -> bool:
    """Whether a part of a pattern fits a key; `lora_*` fits by its start."""
    return name.startswith(part[:-1]) if part.endswith("*") else name == part
