"""Records of what each rank reads for itself, and how ranks differ. No torch here.

A record is a list of entries. Ranks compare its digest; only if digests differ are entries exchanged, and
what most ranks have counts as right.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from planc.runtime.numerics import MAX_NAMED, ranks_text
from planc.tables import plural

Kind = Literal[
    "sequences",
    "graph",
    "source",
    "override",
    "readers",
    "file",
    "text",
    "tokens",
    "weights",
    "code",
    "version",
    "variable",
    "setting",
]
"""The kind of an entry: a `source` is a file of the plan, a `text` a dataset that a library reads."""

_SUBJECTS: Mapping[Kind, str] = {
    "sequences": "{}",
    "graph": "the {}",
    "source": "`{}`",
    "override": "{}",
    "readers": "the list of {}",
    "file": "`{}`",
    "text": "the text of `{}`",
    "tokens": "the tokens of `{}`",
    "weights": "`{}`",
    "code": "the code in `{}`",
    "version": "{}",
    "variable": "`{}`",
    "setting": "{}",
}
_ABSENT: Mapping[Kind, str] = {"version": "not installed", "variable": "unset"}
_SHA256_KINDS = ("graph", "source", "file", "text", "tokens", "code")
_SAME_FILES = "give every machine the same files, for example on a shared file system"
_HELPS: Mapping[Kind, str] = {
    "sequences": f"{_SAME_FILES}, and run `planc data prepare` on each, which prints the number",
    "graph": "start every rank with the same plan and the same settings",
    "source": "start every rank with the same plan and the same settings",
    "override": "start every rank with the same plan and the same settings",
    "readers": "give every rank the same callbacks and metrics, in the same order",
    "file": _SAME_FILES,
    "text": _SAME_FILES,
    "tokens": _SAME_FILES,
    "weights": _SAME_FILES,
    "code": "install the same packages on every machine",
    "version": "install the same packages on every machine",
    "variable": "give every rank the same environment",
    "setting": "run on machines of one kind, with the same environment",
}
_EXPLAINS: tuple[Kind, ...] = ("source", "override")
"""Kinds that may differ by themselves: a comment changes a plan's text, but not its graph."""
_FOLLOWS: tuple[Kind, ...] = ("tokens",)
"""Kinds that differ only if a more specific one does."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that a rank read. `value` is a SHA-256 for the content of a file."""

    kind: Kind
    name: str
    value: str


@dataclass(slots=True)
class Reads:
    """The entries of one rank, collected while it reads."""

    entries: list[Entry] = field(default_factory=list)

    def add(self, kind: Kind, name: str, value: str) -> None:
        self.entries.append(Entry(kind, name, value))

    def add_content(self, kind: Kind, name: str, content: bytes) -> None:
        self.add(kind, name, hashlib.sha256(content).hexdigest())

    def take(self) -> tuple[Entry, ...]:
        """The entries so far, each once; later ones begin a new record.

        A file that changed between two reads has two entries; the second is marked.
        """
        taken: dict[tuple[Kind, str], Entry] = {}
        for entry in dict.fromkeys(self.entries):
            name = entry.name
            while (entry.kind, name) in taken:
                name += " (read again)"
            taken[entry.kind, name] = Entry(entry.kind, name, entry.value)
        self.entries.clear()
        return tuple(taken.values())


@dataclass(frozen=True, slots=True)
class Difference:
    """An entry that differs on some ranks; a value is None if a rank has no such entry."""

    kind: Kind
    name: str
    value: str | None
    expected: str | None


@dataclass(frozen=True, slots=True)
class Deviation:
    """A rank, its machine, and where it differs from most ranks. `num_more` differences are left out."""

    rank: int
    host: str
    differences: tuple[Difference, ...]
    num_more: int = 0

    def data(self) -> dict[str, Any]:
        """The deviation as JSON."""
        found = [
            [difference.kind, difference.name, difference.value, difference.expected]
            for difference in self.differences
        ]
        return {"rank": self.rank, "host": self.host, "differences": found, "num_more": self.num_more}


def deviation_of(data: Mapping[str, Any]) -> Deviation:
    """The deviation that `Deviation.data` encoded."""
    found = tuple(Difference(*one) for one in data["differences"])
    return Deviation(data["rank"], data["host"], found, data["num_more"])


def digest(entries: Iterable[Entry]) -> str:
    """A SHA-256 that two ranks share if and only if nothing that must be equal differs."""
    compared = [[entry.kind, entry.name, entry.value] for entry in entries if entry.kind not in _EXPLAINS]
    return hashlib.sha256(json.dumps(sorted(compared)).encode()).hexdigest()


def majority(digests: Sequence[str]) -> int:
    """The lowest rank that agrees with most others."""
    num_alike = Counter(digests)
    return max(range(len(digests)), key=lambda rank: (num_alike[digests[rank]], -rank))


def differences(own: Iterable[Entry], expected: Iterable[Entry]) -> list[Difference]:
    """Return the entries in which two records differ, the most specific first."""
    ours, theirs = _by_name(own), _by_name(expected)
    kinds = get_args(Kind)
    differing = [
        Difference(*key, ours.get(key), theirs.get(key))
        for key in sorted({*ours, *theirs}, key=lambda key: (kinds.index(key[0]), key[1]))
        if ours.get(key) != theirs.get(key)
    ]
    telling = [one for one in differing if one.kind not in _FOLLOWS]
    return telling or differing


def deviation(rank: int, host: str, own: Iterable[Entry], expected: Iterable[Entry]) -> Deviation:
    """A rank's deviation, small enough for every rank to receive it from every other."""
    found = differences(own, expected)
    return Deviation(rank, host, tuple(found[:MAX_NAMED]), max(0, len(found) - MAX_NAMED))


def describe(deviations: Sequence[Deviation], *, world_size: int) -> tuple[str, str]:
    """The message for ranks that differ, and its help. Equal differences are listed once."""
    holders: dict[Difference, list[Deviation]] = {}
    for one in deviations:
        for difference in one.differences:
            holders.setdefault(difference, []).append(one)
    texts = [
        _text(difference, who, num_others=world_size - len(deviations)) for difference, who in holders.items()
    ]
    num_more = max(0, len(texts) - MAX_NAMED) + max((one.num_more for one in deviations), default=0)
    more = [f"and {num_more} more"] if num_more else []
    helps = dict.fromkeys(_HELPS[difference.kind] for difference in holders)
    return f"ranks differ: {'; '.join([*texts[:MAX_NAMED], *more])}", "; ".join(helps)


def _by_name(entries: Iterable[Entry]) -> dict[tuple[Kind, str], str]:
    return {(entry.kind, entry.name): entry.value for entry in entries}


def _text(difference: Difference, who: Sequence[Deviation], *, num_others: int) -> str:
    subject = _SUBJECTS[difference.kind].format(difference.name)
    own, expected = _value(difference.kind, difference.value), _value(difference.kind, difference.expected)
    others = "the other rank" if num_others == 1 else f"the other {num_others} ranks"
    return f"{subject} is {own} on {_places(who)}, and {expected} on {others}"


def _places(who: Sequence[Deviation]) -> str:
    """`rank 3 (node-b)`, `ranks 4, 5 (node-b) and rank 7 (node-c)`."""
    by_host: dict[str, list[int]] = {}
    for one in who:
        by_host.setdefault(one.host, []).append(one.rank)
    shown = [f"{ranks_text(ranks)} ({host})" for host, ranks in by_host.items()][:MAX_NAMED]
    more = [plural(len(by_host) - MAX_NAMED, "more machine")] if len(by_host) > MAX_NAMED else []
    return " and ".join([*shown, *more])


def _value(kind: Kind, value: str | None) -> str:
    if value is None:
        return _ABSENT.get(kind, "not read")
    return f"sha256 {value[:12]}" if kind in _SHA256_KINDS else value
