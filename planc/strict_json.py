"""JSON as planc writes it, and nothing else: readers would disagree about the rest, or fail on it.

Refused are a key twice in an object, NaN, numbers that no double holds, half a surrogate pair in a string,
and values nested too deeply.
"""

from __future__ import annotations

import json
from collections import Counter
from math import isinf
from typing import Any, NoReturn

MAX_INTEGER = 2**127
"""Larger than any count or seed, and small enough to be a float, even squared."""
_MAX_DIGITS = len(str(MAX_INTEGER)) + 1


def loads(text: str | bytes) -> Any:
    """The value of a JSON text, in UTF-8 if it is in bytes. ValueError for anything else."""
    if isinstance(text, bytes):
        text = text.decode()
    try:
        value = json.loads(
            text,
            object_pairs_hook=without_repeats,
            parse_int=_integer,
            parse_float=_float,
            parse_constant=_refuse_constant,
        )
        if "\\u" in text:
            # Half a surrogate pair has no encoding: a UnicodeEncodeError is a ValueError.
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("values are nested too deeply") from None
    return value


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The dict of an object's pairs; ValueError where a key stands twice."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f'the key "{twice[:100]}" stands twice')
    return fields


def _integer(text: str) -> int:
    # The length first: the time to convert digits grows with the square of their number.
    if len(text) > _MAX_DIGITS or abs(value := int(text)) >= MAX_INTEGER:
        raise ValueError(f"an integer of {len(text)} digits is too large")
    return value


def _float(text: str) -> float:
    value = float(text)
    if isinf(value):
        raise ValueError(f"{text[:20]} is too large for a number")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
