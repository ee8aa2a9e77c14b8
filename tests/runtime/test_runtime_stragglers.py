"""Which ranks are named as stragglers, by their own times."""

from __future__ import annotations

import random
from statistics import median

import pytest

from planc.runtime.torch.reporting.own_time import Stragglers, standing_out

EVEN = [0.10, 0.11, 0.10, 0.10]
SLOW = [0.10, 0.11, 0.30, 0.10]


def named(stragglers: Stragglers, seconds: list[float], *, num_steps: int = 5) -> list[int]:
    return [one.rank for one in stragglers.add([num_steps * one for one in seconds], num_steps=num_steps)]


def test_a_rank_is_named_when_it_stands_out_twice_in_a_row() -> None:
    stragglers = Stragglers()
    assert named(stragglers, SLOW) == []
    assert named(stragglers, SLOW) == [2]


def test_standing_out_once_is_chance() -> None:
    stragglers = Stragglers()
    assert [named(stragglers, one) for one in (SLOW, EVEN, SLOW, EVEN)] == [[], [], [], []]


def test_a_rank_is_named_anew_only_after_it_has_kept_up() -> None:
    stragglers = Stragglers()
    found = [named(stragglers, one) for one in (SLOW, SLOW, SLOW, EVEN, SLOW, SLOW)]
    assert found == [[], [2], [], [], [], [2]]


def test_fewer_than_five_steps_are_judged_with_those_that_follow() -> None:
    stragglers = Stragglers()
    found = [named(stragglers, SLOW, num_steps=1) for _ in range(10)]
    assert found == [[]] * 9 + [[2]]


def test_a_few_milliseconds_are_no_straggling() -> None:
    assert standing_out([0.010, 0.025]) == ()


def test_of_two_ranks_the_slower_one_is_told_with_the_others_time() -> None:
    (found,) = standing_out([0.1, 0.3])
    assert str(found) == (
        "rank 1 straggles: its own work takes 0.300 s per step, 3.0 times the others' median of 0.100 s"
    )


def test_one_rank_has_nobody_to_be_compared_with() -> None:
    assert standing_out([5.0]) == ()


@pytest.mark.parametrize("num_ranks", [2, 3, 8, 9, 33])
def test_every_rank_is_compared_with_the_median_of_the_others(num_ranks: int) -> None:
    rng = random.Random(num_ranks)
    for _ in range(200):
        seconds = [rng.choice((0.1, 0.1, 0.11, 0.15, 0.3, rng.random())) for _ in range(num_ranks)]
        others = [median(seconds[:rank] + seconds[rank + 1 :]) for rank in range(num_ranks)]
        slow = [
            (rank, own, other)
            for rank, (own, other) in enumerate(zip(seconds, others, strict=True))
            if own > 1.5 * other and own - other > 0.02
        ]
        slowest = sorted(slow, key=lambda one: -one[1])[:8]
        assert [(one.rank, one.seconds, one.others_seconds) for one in standing_out(seconds)] == slowest


def test_ranks_of_a_pipeline_are_compared_by_their_stages_work() -> None:
    """The last of four stages has the head, as much work as two layers: it is no straggler, the second is."""
    shares = (2.0, 2.0, 2.0, 4.0)
    assert standing_out([0.1, 0.1, 0.1, 0.2], shares=shares) == ()
    (found,) = standing_out([0.1, 0.2, 0.1, 0.2], shares=shares)
    assert str(found) == (
        "rank 1 straggles: its own work takes 0.200 s per step, 2.0 times the others' median of 0.100 s, "
        "scaled to its stages"
    )
    (found,) = standing_out([0.1, 0.1, 0.1, 0.5], shares=shares)
    assert (found.rank, round(found.others_seconds, 6)) == (3, 0.2)


def test_a_rank_with_little_work_hides_no_other() -> None:
    (found,) = standing_out([0.02, 0.5, 0.2, 0.2], shares=(0.1, 2.0, 2.0, 2.0))
    assert found.rank == 1
