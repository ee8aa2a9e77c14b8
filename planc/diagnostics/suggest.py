"""Closest-name suggestions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import zip_longest

_DOUBLED = re.compile(r"(.)\1+")
_WORDS = re.compile(r"[._-]")


def closest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that `name` is most likely a slip of, or None when nothing is near or two are as near.

    The budget is one edit per three characters, so short names do not match everything. Case is ignored.
    """
    budget = len(name) // 3
    near: dict[str, int] = {}
    for candidate in candidates:
        if abs(len(candidate) - len(name)) > budget:
            continue
        distance = _edit_distance(name.lower(), candidate.lower())
        if distance <= budget:
            near[candidate] = distance
    best = [candidate for candidate, distance in near.items() if distance == min(near.values())]
    return best[0] if len(best) == 1 else None


def nearest(name: str, candidates: Iterable[str], *, limit: int) -> tuple[str, ...]:
    """At most `limit` candidates for `name`: slips of it, then names with a word that it begins."""
    listed = tuple(dict.fromkeys(candidates))
    distances = {one: _edit_distance(name.lower(), one.lower()) for one in listed}
    least = min(distances.values(), default=0)
    slips = [one for one in listed if distances[one] == least <= len(name) // 3]
    word = name.lower()
    begun = [
        one
        for one in listed
        if len(word) > 1 and any(part.startswith(word) for part in (one.lower(), *_WORDS.split(one.lower())))
    ]
    return tuple(dict.fromkeys((*slips, *begun)))[:limit]


def did_you_mean(name: str, candidates: Iterable[str]) -> str | None:
    """A help line naming the closest candidate."""
    found = closest(name, candidates)
    return f"did you mean `{found}`?" if found else None


def is_slip(written: str, near: str) -> bool:
    """Whether a name can hardly be anything but `near` mistyped: word by word, each at most a key or two off.

    A short word is not a slip of another: `q_norm` and `k_norm` differ, and so do names with other numbers
    or an extra word.
    """
    before, after = written.lower(), near.lower()
    if _WORDS.sub("", before) == _WORDS.sub("", after):
        return True
    if _digits(before) != _digits(after):
        return False
    pairs = list(zip_longest(_WORDS.split(before), _WORDS.split(after), fillvalue=""))
    return all(one == other or _is_slip_of_word(one, other) for one, other in pairs)


_MIN_CHARACTERS = 4
"""A slip in a shorter word leaves too little to be sure of what was meant."""


def _is_slip_of_word(written: str, near: str) -> bool:
    if _DOUBLED.sub(r"\1", written) == _DOUBLED.sub(r"\1", near):
        return True
    if len(near) < _MIN_CHARACTERS:
        return False
    return _edit_distance(written, near) <= (1 if len(near) < 2 * _MIN_CHARACTERS else 2)


def _digits(name: str) -> str:
    return "".join(filter(str.isdigit, name))


def _edit_distance(left: str, right: str) -> int:
    """Insertions, deletions, substitutions and adjacent swaps (optimal string alignment)."""
    before: list[int] = []
    previous = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        current = [i]
        for j, b in enumerate(right, 1):
            cost = min(previous[j] + 1, current[j - 1] + 1, previous[j - 1] + (a != b))
            if i > 1 and j > 1 and a == right[j - 2] and left[i - 2] == b:
                cost = min(cost, before[j - 2] + 1)
            current.append(cost)
        before, previous = previous, current
    return previous[-1]
