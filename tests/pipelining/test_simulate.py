"""Orders are timed as a run would take, and refused where a run would hang or mix up tensors."""

from __future__ import annotations

from functools import cache

import pytest

from planc.pipelining.orders import Action, Direction, Order, Schedule, make_orders
from planc.pipelining.simulate import ScheduleError, Simulation, equal_step, simulate
from tests.pipelining.swaps import PIPELINES, Pipeline, disagreements, judge, outcome


def orders_from(*texts: str) -> list[Order]:
    """Orders as they are printed: "0F0 0F1 0B0 0B1", a text for each rank."""
    return [
        tuple(
            Action(int(stage), Direction(way), int(micro_batch))
            for name in text.split()
            for way in "FBW"
            for stage, found, micro_batch in [name.partition(way)]
            if found
        )
        for text in texts
    ]


def evenly(orders: list[Order], *, num_stages: int) -> Simulation:
    return simulate(orders, num_stages=num_stages, forward=[1] * num_stages, backward=[1] * num_stages)


def test_uneven_stages_and_messages_are_timed() -> None:
    orders = orders_from("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1")
    step = simulate(orders, num_stages=2, forward=[1, 3], backward=[2, 5], message=0.5)
    assert step.starts == ((0, 1, 10, 18), (1.5, 4.5, 9.5, 12.5))
    assert step.ends == ((1, 2, 12, 20), (4.5, 9.5, 12.5, 17.5))
    assert step.seconds == 20
    assert step.bubble == pytest.approx((1 - 6 / 20, 1 - 16 / 20))
    assert step.in_flight == step.rank_in_flight == (2, 1)


def test_stages_of_one_rank_send_no_messages() -> None:
    orders = orders_from("0F0 1F0 1B0 0B0")
    step = simulate(orders, num_stages=2, forward=[1, 1], backward=[1, 1], message=7)
    assert (step.seconds, step.in_flight, step.rank_in_flight) == (4, (1, 1), (2,))


@pytest.mark.parametrize("schedule", Schedule)
def test_ends_are_the_longest_paths(schedule: Schedule) -> None:
    """A reference that follows each action to what it waits for, recursively."""
    v = 2 if schedule is Schedule.INTERLEAVED else 1
    orders = make_orders(schedule, num_ranks=3, stages_per_rank=v, num_micro_batches=7)
    num_stages = 3 * v
    whole, weights = [2.0, 1.1, 0.5, 3.0, 0.2, 1.0], [0.7, 0.6, 0.1]
    times = {"F": [1.0, 0.3, 2.0, 0.7, 0.1, 5.0], "B": whole, "W": weights}
    if schedule is Schedule.ZERO_BUBBLE:
        times["B"] = [one - part for one, part in zip(whole, weights, strict=False)]
    before = {
        str(action): str(order[place - 1]) if place else ""
        for order in orders
        for place, action in enumerate(order)
    }

    @cache
    def end(stage: int, way: str, i: int) -> float:
        source = {"F": stage - 1, "B": stage + 1, "W": -1}[way]
        arrival = end(source, way, i) + 0.25 if 0 <= source < num_stages else 0.0
        earlier = before[f"{stage}{way}{i}"]
        kind = next((kind for kind in times if kind in earlier), "")
        own = end(int(earlier.split(kind)[0]), kind, int(earlier.split(kind)[1])) if earlier else 0.0
        return max(arrival, own) + times[way][stage]

    step = simulate(
        orders,
        num_stages=num_stages,
        forward=times["F"][:num_stages],
        backward=whole[:num_stages],
        weights=weights[:num_stages] if schedule is Schedule.ZERO_BUBBLE else None,
        message=0.25,
    )
    for order, ends in zip(orders, step.ends, strict=True):
        expected = [end(action.stage, str(action.direction), action.micro_batch) for action in order]
        assert list(ends) == pytest.approx(expected)
    assert step.seconds == max(max(ends) for ends in step.ends)


@pytest.mark.parametrize(
    ("orders", "num_stages", "message"),
    [
        (("0F0 0B0", "1F0"), 2, "rank 1 lacks 1B0"),
        (("0F0 0F0 0B0", "1F0 1B0"), 2, "rank 0 has 0F0 twice"),
        (("0F0 0B0", "1F0 2F0 2B0 1B0"), 3, "rank 1 has 2F0, but stage 2 is on rank 0"),
        (("0F0 0B0", "1F0 1B0 3F0 3B0"), 2, "rank 1 has 3F0, but stages are 0 to 1"),
        (("0B0 0F0", "1F0 1B0"), 2, "rank 0 has 0B0 before 0F0"),
        (("0F0 0B0", ""), 1, "rank 1 has no actions"),
        (("0F0 0B0 0W0", "1F0 1B0"), 2, "rank 1 lacks 1W0"),
        (("0F0 0B0 0W0", "1F0 1W0 1B0"), 2, "rank 1 has 1W0 before 1B0"),
        (("0F0 0W0 0B0", "1F0 1B0 1W0"), 2, "rank 0 has 0W0 before 0B0"),
        (
            ("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"),
            2,
            "deadlock: rank 0 waits at 0B0 for 1B0, rank 1 waits at 1F1 for 0F1",
        ),
        (
            ("0F0 0F1 0B0 0B1", "1F1 1F0 1B0 1B1"),
            2,
            "rank 0 sends the activations of 0F0 to rank 1, which receives those of 0F1 first",
        ),
        (
            ("0F0 0F1 0B1 0B0", "1F0 1F1 1B0 1B1"),
            2,
            "rank 1 sends the gradients of 1B0 to rank 0, which receives those of 1B1 first",
        ),
    ],
)
def test_illegal_orders_are_refused_by_name(orders: tuple[str, ...], num_stages: int, message: str) -> None:
    with pytest.raises(ScheduleError) as error:
        evenly(orders_from(*orders), num_stages=num_stages)
    assert str(error.value) == message


def test_messages_under_way_are_counted_until_their_receiver_starts() -> None:
    orders = orders_from("0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3", "1F0 1F1 1F2 1F3 1B0 1B1 1B2 1B3")
    assert evenly(orders, num_stages=2).max_sends == 1
    # The second stage has started with one of four as the first one ends.
    assert simulate(orders, num_stages=2, forward=[1, 10], backward=[1, 1]).max_sends == 3
    assert evenly(orders_from("0F0 1F0 1B0 0B0"), num_stages=2).max_sends == 0


UNEVEN = [(Schedule.INTERLEAVED, pp, v, m) for pp in (3, 4, 5, 8) for v in (2, 3) for m in (5, 7, 11, 13, 23)]


@pytest.mark.parametrize("pipeline", [*PIPELINES, *UNEVEN], ids=lambda pipeline: "-".join(map(str, pipeline)))
def test_a_run_with_room_for_as_many_messages_as_in_equal_steps_completes(pipeline: Pipeline) -> None:
    schedule, pp, v, m = pipeline
    orders = make_orders(schedule, num_ranks=pp, stages_per_rank=v, num_micro_batches=m)
    room = equal_step(orders, num_stages=pp * v).max_sends
    assert 1 <= room <= m
    assert outcome(list(orders), num_stages=pp * v, room=room) == "completes"


def test_less_room_can_hang() -> None:
    orders = make_orders(Schedule.INTERLEAVED, num_ranks=4, stages_per_rank=2, num_micro_batches=11)
    assert equal_step(orders, num_stages=8).max_sends == 4
    assert outcome(list(orders), num_stages=8, room=2) == "hangs"


def test_a_deadlock_names_only_the_ranks_in_the_circle() -> None:
    orders = orders_from("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1", "2F0 2F1 2B0 2B1")
    with pytest.raises(ScheduleError) as error:
        evenly(orders, num_stages=3)
    assert str(error.value) == "deadlock: rank 1 waits at 1B0 for 2B0, rank 2 waits at 2F1 for 1F1"


@pytest.mark.parametrize("pipeline", PIPELINES, ids=lambda pipeline: "-".join(map(str, pipeline)))
def test_swaps_are_refused_if_and_only_if_a_run_fails(pipeline: Pipeline) -> None:
    """All of them: `python -m tests.pipelining.swaps`."""
    assert disagreements(judge(pipeline, sample=40)) == 0
