"""Covering arrays: few rows, in which every two values of different axes meet that may meet at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations

Row = Mapping[str, object]
_Pair = tuple[tuple[str, object], tuple[str, object]]


def covering(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Those of `rows`, a full product, that hold every pair of it: greedily, in the order of the product."""
    missing = {pair for row in rows for pair in _pairs(row)}
    chosen: list[Row] = []
    while missing:
        best = max(rows, key=lambda row: _num_missing(row, missing))
        chosen.append(best)
        missing.difference_update(_pairs(best))
    return tuple(chosen)


def _pairs(row: Row) -> Iterator[_Pair]:
    return combinations(row.items(), 2)


def _num_missing(row: Row, missing: Iterable[_Pair]) -> int:
    return sum(pair in missing for pair in _pairs(row))
