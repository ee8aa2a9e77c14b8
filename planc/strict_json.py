"""JSON as planc writes it: no key twice in an object, and no NaN. Readers would disagree about either."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, NoReturn


def loads(text: str | bytes) -> Any:
    """The value of a JSON text. ValueError for anything else, RecursionError for one nested too deeply."""
    return json.loads(text, object_pairs_hook=without_repeats, parse_constant=_refuse_constant)


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The dict of an object's pairs; ValueError where a key stands twice."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f'the key "{twice[:100]}" stands twice')
    return fields


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
