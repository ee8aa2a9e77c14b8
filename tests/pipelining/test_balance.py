"""Blocks are spread over stages as evenly as they can be, ends included."""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import pytest

from planc.pipelining.balance import balance


def best(costs: list[int], num_stages: int, first: int, last: int) -> tuple[int, ...]:
    """The best of all splits, each of them weighed."""

    def rank(split: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
        blocks = iter(costs)
        stages = [sum(next(blocks) for _ in range(count)) for count in split]
        stages[0] += first
        stages[-1] += last
        return max(stages), sum(stage**2 for stage in stages), split

    cuts = combinations(range(1, len(costs)), num_stages - 1)
    return min((tuple(b - a for a, b in pairwise((0, *cut, len(costs)))) for cut in cuts), key=rank)


@pytest.mark.parametrize("seed", range(200))
def test_a_split_is_the_best_of_all(seed: int) -> None:
    draw = random.Random(seed)
    num_blocks = draw.randint(1, 9)
    costs = [draw.choice((0, 1, 1, 2, 5)) for _ in range(num_blocks)]
    num_stages, first, last = draw.randint(1, num_blocks), draw.randint(0, 4), draw.randint(0, 4)
    split = balance(costs, num_stages=num_stages, first=first, last=last)
    assert split == best(costs, num_stages, first, last)


def test_the_head_takes_blocks_from_the_last_stage() -> None:
    assert balance([1] * 32, num_stages=4, last=2) == (8, 8, 9, 7)


def test_earlier_stages_have_fewer_of_equal_blocks() -> None:
    """Also when the costs are fractions, whose sums a float rounds."""
    assert balance([0.1] * 6, num_stages=4) == (1, 1, 2, 2)


@pytest.mark.parametrize("num_stages", [0, 4])
def test_a_stage_without_a_block_is_refused(num_stages: int) -> None:
    with pytest.raises(ValueError, match="3 blocks can't fill"):
        balance([1, 1, 1], num_stages=num_stages)
