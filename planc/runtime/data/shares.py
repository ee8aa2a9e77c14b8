"""The source of each position of a mixture, in closed form: nothing of the data is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import count

import numpy as np
import numpy.typing as npt

BLOCK = 4_096
"""Positions. With up to MAX_SOURCES sources, the heaviest can always take what rounding leaves."""
MAX_SOURCES = 64
_BLOCKS_STREAM = 1
"""A stream of random numbers: 0 is the order of a single source, those from 2 on are of each source."""


@dataclass(frozen=True, slots=True)
class Shares:
    """The exact shares of sources, from their weights."""

    numerators: tuple[int, ...]
    denominator: int

    @classmethod
    def of(cls, weights: Sequence[Fraction]) -> Shares:
        assert 0 < len(weights) <= MAX_SOURCES and min(weights) > 0
        common = 1
        for weight in weights:
            common = common * weight.denominator // np.gcd(common, weight.denominator)
        numerators = tuple(int(weight * common) for weight in weights)
        return cls(numerators, sum(numerators))

    def totals(self, block: int) -> tuple[int, ...]:
        """The sequences of each source in all blocks before `block`: rounded, the rest for the heaviest."""
        positions = block * BLOCK
        totals = [
            (2 * positions * numerator + self.denominator) // (2 * self.denominator)
            for numerator in self.numerators
        ]
        heaviest = self.numerators.index(max(self.numerators))
        totals[heaviest] = positions - (sum(totals) - totals[heaviest])
        return tuple(totals)


@dataclass(frozen=True, slots=True)
class Block:
    """The source of each position of a block, and its place among all sequences of that source."""

    sources: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]


def source_block(shares: Shares, *, seed: int, block: int) -> Block:
    """A block's sources, spread by one random key for each sequence: of n, the i-th is in the i-th n-th."""
    before, after = shares.totals(block), shares.totals(block + 1)
    counts = [stop - start for start, stop in zip(before, after, strict=True)]
    numbers = np.concatenate([np.arange(count, dtype=np.int64) for count in counts])
    sources = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    drawn = np.random.PCG64(np.random.SeedSequence([seed, block, _BLOCKS_STREAM])).random_raw(BLOCK)
    # Sums and quotients of float64 are equal on every machine.
    within = (drawn >> np.uint64(11)).astype(np.float64) / 2.0**53
    keys = (numbers + within) / np.array(counts, dtype=np.float64)[sources]
    order = np.argsort(keys, kind="stable")
    return Block(sources[order], (numbers + np.array(before, dtype=np.int64)[sources])[order])


def first_difference(
    one: Shares, another: Shares, *, own: Sequence[bool], seed: int, end: int | None
) -> int | None:
    """The first position before `end` at which two mixtures of a seed take another sequence.

    `own` states, for each number of a source, whether both mixtures have the same source there.
    """
    if one == another and all(own):
        return None
    is_same = np.array(own)
    for block in count() if end is None else range(-(-end // BLOCK)):
        if all(own) and one.totals(block + 1) == another.totals(block + 1):
            # So it was before: blocks of other numbers are not passed over.
            continue
        found, other = (source_block(shares, seed=seed, block=block) for shares in (one, another))
        differs = (found.sources != other.sources) | (found.places != other.places) | ~is_same[found.sources]
        if differs.any():
            position = block * BLOCK + int(differs.argmax())
            return position if end is None or position < end else None
    return None
