"""Covering arrays: few rows, in which every two values of different axes meet that may meet at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

Row = Mapping[str, object]


def covering(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Those of `rows`, a full product, that hold every pair of it: greedily, in the order of the product."""
    held = _pairs(rows)
    missing = 0
    for pairs in held:
        missing |= pairs
    chosen: list[Row] = []
    while missing:
        best = max(range(len(rows)), key=lambda row: (held[row] & missing).bit_count())
        chosen.append(rows[best])
        missing &= ~held[best]
    return tuple(chosen)


def _pairs(rows: Sequence[Row]) -> list[int]:
    """The pairs of values in each row, a bit for each pair that occurs in any."""
    bits: dict[object, int] = {}
    return [
        sum(1 << bits.setdefault(pair, len(bits)) for pair in combinations(row.items(), 2)) for row in rows
    ]
