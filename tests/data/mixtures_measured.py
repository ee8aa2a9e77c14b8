"""Mixtures measured: `python -m tests.data.mixtures_measured`.

`by_hand` computes the order of a mixture anew, position by position and with exact fractions.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

from planc.runtime.data.mixture import BLOCK, MixtureOrder, Shares, source_block
from planc.tables import render_table

MIXTURES: dict[str, tuple[str, ...]] = {
    "two": ("0.7", "0.3"),
    "halves": ("1", "1"),
    "five, down to 1 %": ("0.55", "0.25", "0.1", "0.09", "0.01"),
    "one in a hundred thousand": ("99999", "1"),
    "thirds": ("1", "1", "1"),
    "sixty-four": tuple(str(number) for number in range(1, 65)),
}
NUM_POSITIONS = 400_000
_PER_BLOCK = 4_096


def worst_deviation(weights: Sequence[str], *, seed: int, num_positions: int = NUM_POSITIONS) -> float:
    """The most sequences by which any prefix has more or fewer of a source than its exact share."""
    exact = [Fraction(weight) for weight in weights]
    shares = Shares.of(exact)
    blocks = -(-num_positions // BLOCK)
    sources = np.concatenate(
        [source_block(shares, seed=seed, block=block).sources for block in range(blocks)]
    )
    lengths = np.arange(1, num_positions + 1)
    worst = 0.0
    for number, weight in enumerate(exact):
        seen = np.cumsum(sources[:num_positions] == number)
        worst = max(worst, float(np.abs(seen - lengths * float(weight / sum(exact))).max()))
    return worst


def by_hand(sizes: Sequence[int], weights: Sequence[str], *, seed: int) -> Iterator[tuple[int, int, int]]:
    """(source, epoch, sequence of the source) of each position, from the definition."""
    shares = [Fraction(weight) / sum(map(Fraction, weights)) for weight in weights]
    heaviest = max(range(len(shares)), key=lambda number: (shares[number], -number))
    orders: dict[tuple[int, int], list[int]] = {}
    taken = [0] * len(sizes)
    block = 0
    while True:
        end = (block + 1) * _PER_BLOCK
        totals = [int(share * end + Fraction(1, 2)) for share in shares]
        totals[heaviest] += end - sum(totals)
        keys = np.random.PCG64(np.random.SeedSequence([seed, block, 1])).random_raw(_PER_BLOCK)
        slots = []
        for number, total in enumerate(totals):
            count = total - taken[number]
            for place in range(count):
                drawn = int(keys[len(slots)]) >> 11
                slots.append(
                    (float((place + drawn / 2**53) / count), len(slots), number, taken[number] + place)
                )
        for _, _, number, place in sorted(slots):
            epoch, within = divmod(place, sizes[number])
            if (number, epoch) not in orders:
                raw = np.random.PCG64(np.random.SeedSequence([seed, epoch, 2 + number])).random_raw(
                    sizes[number]
                )
                orders[number, epoch] = sorted(range(sizes[number]), key=lambda one: int(raw[one]))
            yield number, epoch, orders[number, epoch][within]
        taken, block = totals, block + 1


def main() -> int:
    rows, is_sound = [], True
    for name, weights in MIXTURES.items():
        worst = max(worst_deviation(weights, seed=seed) for seed in range(3))
        sizes = [101 + 37 * number for number in range(len(weights))]
        order = MixtureOrder(tuple(sizes), Shares.of([Fraction(one) for one in weights]), seed=5)
        count = 3 * sum(sizes)
        offsets = [sum(sizes[:number]) for number in range(len(sizes))]
        expected = by_hand(sizes, weights, seed=5)
        hand = [offsets[number] + one for number, _, one in (next(expected) for _ in range(count))]
        equal = sum(
            ours == theirs for ours, theirs in zip(order.sample_ids(0, count=count), hand, strict=True)
        )
        is_sound &= worst <= 50 and equal == count
        rows.append([name, str(len(weights)), f"{worst:.2f}", f"{equal} of {count}"])
    header = ("mixture", "sources", f"worst of {NUM_POSITIONS:_} prefixes, 3 seeds", "3 epochs equal by hand")
    print(render_table(rows, header=header, right=(1, 2)))
    return 0 if is_sound else 1


if __name__ == "__main__":
    sys.exit(main())
