"""The orders that planc makes: complete, the published ones, with the published bubbles and memory."""

from __future__ import annotations

import pytest
from torch.distributed.pipelining import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)
from torch.distributed.pipelining.schedules import _Action

from planc.pipelining.orders import Order, Schedule, make_orders, schedule_of
from planc.pipelining.simulate import Simulation, simulate

SIZES = (1, 2, 3, 4, 8)
MICRO_BATCHES = (1, 2, 3, 4, 5, 7, 8, 9, 16, 31, 32)
SHAPES = [
    (schedule, pp, v, m)
    for schedule, chunks in (
        (Schedule.GPIPE, (1,)),
        (Schedule.ONE_F_ONE_B, (1,)),
        (Schedule.ZERO_BUBBLE, (1,)),
        (Schedule.INTERLEAVED, (2, 3)),
    )
    for pp in SIZES
    for v in chunks
    for m in MICRO_BATCHES
]


def orders_of(schedule: Schedule, pp: int, v: int, m: int) -> tuple[Order, ...]:
    return make_orders(schedule, num_ranks=pp, stages_per_rank=v, num_micro_batches=m)


def simulated(schedule: Schedule, pp: int, v: int, m: int) -> Simulation:
    """A step in which a rank's stages take 1 forwards and 2 backwards in sum, as the formulas have it."""
    orders = orders_of(schedule, pp, v, m)
    return simulate(orders, num_stages=pp * v, forward=[1 / v] * pp * v, backward=[2 / v] * pp * v)


@pytest.mark.parametrize(("schedule", "pp", "v", "m"), SHAPES)
def test_every_rank_runs_its_stages_once_each_way_for_every_micro_batch(
    schedule: Schedule, pp: int, v: int, m: int
) -> None:
    ways = "FBW" if schedule is Schedule.ZERO_BUBBLE else "FB"
    for rank, order in enumerate(orders_of(schedule, pp, v, m)):
        stages = [rank + pp * chunk for chunk in range(v)]
        assert sorted(map(str, order)) == sorted(
            f"{s}{way}{i}" for s in stages for way in ways for i in range(m)
        )


@pytest.mark.parametrize(("schedule", "pp", "v", "m"), [s for s in SHAPES if s[0] != Schedule.ZERO_BUBBLE])
def test_the_bubble_is_the_published_one(schedule: Schedule, pp: int, v: int, m: int) -> None:
    """(pp - 1) / (v m + pp - 1); where a round is short of micro batches, every pass of it takes pp slots."""
    slots = v * m + pp - 1 if v == 1 or m >= pp else v * pp + m - 1
    step = simulated(schedule, pp, v, m)
    assert step.seconds == pytest.approx(3 * slots / v)
    assert step.bubble == pytest.approx([1 - v * m / slots] * pp)


@pytest.mark.parametrize(("forward", "backward", "weights"), [(1, 2, 1), (2, 5, 1), (3, 7, 2)])
@pytest.mark.parametrize("pp", SIZES)
@pytest.mark.parametrize("m", MICRO_BATCHES)
def test_the_bubble_of_zero_bubble_is_the_published_one(
    pp: int, m: int, forward: int, backward: int, weights: int
) -> None:
    """(pp - 1) (F + B - W), where B is without W. With fewer micro batches a rank has fewer to fill it."""
    step = simulate(
        orders_of(Schedule.ZERO_BUBBLE, pp, 1, m),
        num_stages=pp,
        forward=[forward] * pp,
        backward=[backward] * pp,
        weights=[weights] * pp,
    )
    bubble = (pp - 1) * (forward + backward - 2 * weights)
    if m >= pp:
        assert step.seconds == m * (forward + backward) + bubble
    else:
        one_f_one_b = (m + pp - 1) * (forward + backward)
        assert m * (forward + backward) + bubble < step.seconds < one_f_one_b


@pytest.mark.parametrize(("schedule", "pp", "v", "m"), SHAPES)
def test_the_micro_batches_in_flight_are_the_published_ones(
    schedule: Schedule, pp: int, v: int, m: int
) -> None:
    """GPipe: all micro batches. 1F1B: one a stage, from its own on. Interleaved: a round for other chunks.
    Zero bubble: as many on all ranks as 1F1B has on the first."""
    step = simulated(schedule, pp, v, m)
    for rank in range(pp):
        match schedule:
            case Schedule.GPIPE:
                expected = m
            case Schedule.ONE_F_ONE_B:
                expected = min(m, pp - rank)
            case Schedule.ZERO_BUBBLE:
                expected = min(m, pp)
            case Schedule.INTERLEAVED:
                rounds = max(1, m // pp)
                expected = min(v * m, (v - 1) * -(-m // rounds) + 2 * (pp - 1 - rank) + 1)
        assert step.rank_in_flight[rank] == expected


def computations(actions: list[_Action | None]) -> list[str]:
    """What a list of PyTorch's computes; its other entries are idle slots, and reductions of gradients."""
    return [str(action) for action in actions if action is not None and action.is_compute_op]


@pytest.mark.parametrize("pp", SIZES)
@pytest.mark.parametrize("m", MICRO_BATCHES)
def test_gpipe_is_that_of_torch(pp: int, m: int) -> None:
    theirs = object.__new__(ScheduleGPipe)
    theirs._num_stages, theirs._n_microbatches = pp, m
    lists = theirs._get_pipeline_order()
    assert lists is not None
    for rank, order in enumerate(orders_of(Schedule.GPIPE, pp, 1, m)):
        assert [str(action) for action in order] == computations(lists[rank])


@pytest.mark.parametrize("pp", SIZES)
@pytest.mark.parametrize("m", MICRO_BATCHES)
def test_one_f_one_b_is_that_of_torch(pp: int, m: int) -> None:
    """Torch's lists count the last rank's forwards from 1, and have too many if micro batches are few."""
    theirs = object.__new__(Schedule1F1B)
    theirs._num_stages, theirs._n_microbatches = pp, m
    lists = theirs._get_pipeline_order()
    assert lists is not None
    orders = orders_of(Schedule.ONE_F_ONE_B, pp, 1, m)
    for rank in range(pp - 1 if m >= pp else 0):
        assert [str(action) for action in orders[rank]] == computations(lists[rank])
    last = pp - 1
    assert [str(action) for action in orders[last]] == [f"{last}{way}{i}" for i in range(m) for way in "FB"]


@pytest.mark.parametrize("v", [2, 3, 4])
@pytest.mark.parametrize("pp", SIZES)
@pytest.mark.parametrize("m", MICRO_BATCHES)
def test_interleaved_is_that_of_torch(pp: int, v: int, m: int) -> None:
    """PyTorch refuses rounds of different sizes."""
    num_rounds = max(1, m // pp)
    theirs = object.__new__(ScheduleInterleaved1F1B)
    theirs.pp_group_size, theirs.n_local_stages, theirs._n_microbatches = pp, v, m
    theirs.microbatches_per_round = m // num_rounds
    for rank, order in enumerate(orders_of(Schedule.INTERLEAVED, pp, v, m)):
        if m % num_rounds == 0:
            assert [str(action) for action in order] == computations(
                theirs._calculate_single_rank_operations(rank)
            )


@pytest.mark.parametrize("pp", SIZES)
@pytest.mark.parametrize("m", MICRO_BATCHES)
def test_zero_bubble_is_that_of_torch(pp: int, m: int) -> None:
    """With one stage a rank; PyTorch writes I for a backward without its weights."""
    num_rounds = max(1, m // pp)
    theirs = object.__new__(ScheduleInterleavedZeroBubble)
    theirs.pp_group_size, theirs.n_local_stages, theirs._n_microbatches = pp, 1, m
    theirs.microbatches_per_round = m // num_rounds
    for rank, order in enumerate(orders_of(Schedule.ZERO_BUBBLE, pp, 1, m)):
        if m % num_rounds == 0:
            found = computations(theirs._calculate_single_rank_operations(rank))
            assert [str(action).replace("B", "I") for action in order] == found


@pytest.mark.parametrize(("schedule", "pp", "v", "m"), SHAPES)
def test_a_schedule_is_known_by_its_orders(schedule: Schedule, pp: int, v: int, m: int) -> None:
    orders = orders_of(schedule, pp, v, m)
    found = schedule_of(orders, num_stages=pp * v)
    # On one rank, and for one micro batch, GPipe orders nothing differently.
    assert found is schedule or orders == orders_of(Schedule.ONE_F_ONE_B, pp, v, m)


def test_other_orders_are_of_no_schedule() -> None:
    first, *others = orders_of(Schedule.ONE_F_ONE_B, 2, 1, 4)
    assert schedule_of((first[::-1], *others), num_stages=2) is None


@pytest.mark.parametrize(
    ("schedule", "pp", "v", "m"),
    [
        (Schedule.GPIPE, 0, 1, 1),
        (Schedule.GPIPE, 1, 1, 0),
        (Schedule.GPIPE, 2, 2, 4),
        (Schedule.ONE_F_ONE_B, 2, 2, 4),
        (Schedule.INTERLEAVED, 2, 1, 4),
        (Schedule.ZERO_BUBBLE, 2, 2, 4),
    ],
)
def test_impossible_pipelines_are_refused(schedule: Schedule, pp: int, v: int, m: int) -> None:
    with pytest.raises(ValueError, match=r"at least one rank|stages a rank"):
        orders_of(schedule, pp, v, m)
