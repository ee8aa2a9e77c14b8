"""The numbers of blocks in a pipeline's stages."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, combinations
from math import lcm


def balance(costs: Sequence[float], *, num_stages: int, first: float = 0, last: float = 0) -> tuple[int, ...]:
    """The number of consecutive blocks in each stage, at least one.

    The costliest stage costs as little as possible. Of splits that agree in this, the sum of squared costs is
    the least; of these, earlier stages have fewer blocks, because they hold more micro batches in flight.
    `costs` are the blocks' costs, none negative. `first` and `last` are what the first and the last stage
    compute in addition: the embedding, and the head.

    Raises ValueError unless there is a stage, and a block for each.
    """
    if not 1 <= num_stages <= len(costs):
        raise ValueError(f"{len(costs)} blocks can't fill {num_stages} stages")
    sums = _sums(costs, first=first, last=last)
    # A stage costs the difference of two sums. `_least_stages` falls as the limit grows.
    limits = sorted({end - start for start, end in combinations(sums, 2)})
    limit = limits[bisect_left(limits, -num_stages, key=lambda limit: -_least_stages(sums, limit=limit))]
    return _most_even(sums, num_stages=num_stages, limit=limit)


def _sums(costs: Sequence[float], *, first: float, last: float) -> list[int]:
    """The costs up to each block, as integers in one unit: rounding would make equal blocks differ."""
    exact = [Fraction(cost) for cost in costs]
    exact[0] += Fraction(first)
    exact[-1] += Fraction(last)
    unit = lcm(*(cost.denominator for cost in exact))
    return list(accumulate((int(cost * unit) for cost in exact), initial=0))


def _least_stages(sums: list[int], *, limit: int) -> int:
    """The least number of stages that cost at most `limit` each; more than blocks if a block costs more."""
    start = num_stages = 0
    while start < len(sums) - 1:
        end = bisect_right(sums, sums[start] + limit) - 1
        if end == start:
            return len(sums)
        start = end
        num_stages += 1
    return num_stages


def _most_even(sums: list[int], *, num_stages: int, limit: int) -> tuple[int, ...]:
    """The split with the least sum of squares, of those whose stages cost at most `limit` each."""
    num_blocks = len(sums) - 1
    too_much = sums[-1] ** 2 + 1
    least = [too_much] * num_blocks + [0]
    """The least sum of squares of the blocks from each on, in as many stages as were added so far."""
    counts: list[list[int]] = []
    for _ in range(num_stages):
        added = [too_much] * (num_blocks + 1)
        taken = [0] * num_blocks
        for start in range(num_blocks):
            for end in range(start + 1, num_blocks + 1):
                cost = sums[end] - sums[start]
                if cost > limit:
                    break
                if (squares := cost * cost + least[end]) < added[start]:
                    added[start], taken[start] = squares, end - start
        least = added
        counts.append(taken)
    split, start = [], 0
    for taken in reversed(counts):
        split.append(taken[start])
        start += taken[start]
    return tuple(split)
