"""The order in which each pp rank computes the micro batches of its stages."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from itertools import zip_longest

from planc.record import record


class Schedule(StrEnum):
    """A rank's order of forwards and backwards.

    `gpipe` (arXiv:1811.06965) runs all forwards before the first backward. `one_f_one_b` (PipeDream-Flush,
    arXiv:2006.09503) alternates them as soon as gradients arrive. `interleaved` (arXiv:2104.04473) does the
    same with several stages a rank. `zero_bubble` (ZB-H1, arXiv:2401.10241) divides each backward of
    `one_f_one_b`: the gradients of weights, which no other rank waits for, fill the time of waiting.
    """

    GPIPE = "gpipe"
    ONE_F_ONE_B = "one_f_one_b"
    INTERLEAVED = "interleaved"
    ZERO_BUBBLE = "zero_bubble"


class Direction(StrEnum):
    """Forward: activations go to the next stage. Backward: gradients go to the previous one.

    A step may have the gradients of weights apart. Its backwards then compute all others.
    """

    FORWARD = "F"
    BACKWARD = "B"
    WEIGHTS = "W"


@record
class Action:
    """One direction of one micro batch through one stage; both count from 0. Weights have none.

    As text it is what torch.distributed.pipelining prints: `2F1` is the forward of micro batch 1 in stage 2.
    """

    stage: int
    direction: Direction
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.direction}{self.micro_batch}"


Order = tuple[Action, ...]
"""One rank's actions in one step, first to last."""


def rank_of(stage: int, *, num_ranks: int) -> int:
    """The pp rank that holds a stage: neighboring stages are on neighboring ranks, around the ring."""
    return stage % num_ranks


def make_orders(
    schedule: Schedule, *, num_ranks: int, stages_per_rank: int, num_micro_batches: int
) -> tuple[Order, ...]:
    """The order of every pp rank.

    Any number of micro batches has a legal order, also one smaller than `num_ranks`, or not a multiple of it.
    Raises ValueError for a number below 1, and for `stages_per_rank` unless it is at least 2 for the
    interleaved schedule, and 1 for the others.
    """
    if min(num_ranks, stages_per_rank, num_micro_batches) < 1:
        raise ValueError("a pipeline has at least one rank, one stage a rank and one micro batch")
    if (stages_per_rank > 1) != (schedule is Schedule.INTERLEAVED):
        raise ValueError(f"{schedule} can't have {stages_per_rank} stages a rank")
    match schedule:
        case Schedule.GPIPE:
            rounds = [num_micro_batches]
            warmups = [num_micro_batches] * num_ranks
        case Schedule.ONE_F_ONE_B:
            rounds = [num_micro_batches]
            warmups = [num_ranks - rank for rank in range(num_ranks)]
        case Schedule.ZERO_BUBBLE:
            return tuple(_zero_bubble(rank, num_ranks, num_micro_batches) for rank in range(num_ranks))
        case Schedule.INTERLEAVED:
            rounds = _rounds(num_micro_batches, num_ranks=num_ranks)
            # Twice the distance to the last rank: a stage's first gradient comes back after as many slots.
            before_last = (stages_per_rank - 1) * max(rounds) + 1
            warmups = [before_last + 2 * (num_ranks - 1 - rank) for rank in range(num_ranks)]
    return tuple(
        _order(
            [rank + chunk * num_ranks for chunk in range(stages_per_rank)],
            warmup=warmup,
            rounds=rounds,
        )
        for rank, warmup in enumerate(warmups)
    )


def has_weights(orders: Sequence[Order]) -> bool:
    """Whether the gradients of weights are actions of their own."""
    return any(action.direction is Direction.WEIGHTS for order in orders for action in order)


def schedule_of(orders: tuple[Order, ...], *, num_stages: int) -> Schedule | None:
    """The schedule that makes these orders, the first of several; None if none does."""
    stages_per_rank = num_stages // len(orders)
    num_micro_batches = 1 + max(action.micro_batch for action in orders[0])
    if has_weights(orders):
        fitting = [Schedule.ZERO_BUBBLE]
    elif stages_per_rank > 1:
        fitting = [Schedule.INTERLEAVED]
    else:
        fitting = [Schedule.ONE_F_ONE_B, Schedule.GPIPE]
    for schedule in fitting:
        made = make_orders(
            schedule,
            num_ranks=len(orders),
            stages_per_rank=stages_per_rank,
            num_micro_batches=num_micro_batches,
        )
        if made == orders:
            return schedule
    return None


def _zero_bubble(rank: int, num_ranks: int, num_micro_batches: int) -> Order:
    """Forwards and backwards as 1F1B has them. After each backward, the weights of the one `rank` before it.

    Later ranks have fewer forwards ahead of their backwards, and defer as many weights more: all ranks keep
    as many micro batches as the first.
    """
    order: list[Action] = []
    for action in _order([rank], warmup=num_ranks - rank, rounds=[num_micro_batches]):
        order.append(action)
        if action.direction is Direction.BACKWARD and action.micro_batch >= rank:
            order.append(Action(rank, Direction.WEIGHTS, action.micro_batch - rank))
    left = range(max(0, num_micro_batches - rank), num_micro_batches)
    return (*order, *(Action(rank, Direction.WEIGHTS, i) for i in left))


def _rounds(num_micro_batches: int, *, num_ranks: int) -> list[int]:
    """Micro batches that pass one stage of a rank before its next: as even as possible, and few.

    A round of fewer than `num_ranks` would make ranks wait for its first micro batch to come around, so only
    a step of fewer has one.
    """
    num_rounds = max(1, num_micro_batches // num_ranks)
    size, num_larger = divmod(num_micro_batches, num_rounds)
    return [size + 1] * num_larger + [size] * (num_rounds - num_larger)


def _order(stages: list[int], *, warmup: int, rounds: list[int]) -> Order:
    """`warmup` forwards, then a backward and a forward in turn, then the backwards that are left."""
    forwards: list[Action] = []
    backwards: list[Action] = []
    start = 0
    for size in rounds:
        part = range(start, start := start + size)
        forwards += [Action(stage, Direction.FORWARD, i) for stage in stages for i in part]
        backwards += [Action(stage, Direction.BACKWARD, i) for stage in reversed(stages) for i in part]
    order = forwards[:warmup]
    for pair in zip_longest(backwards, forwards[warmup:]):
        order += [action for action in pair if action is not None]
    return tuple(order)
