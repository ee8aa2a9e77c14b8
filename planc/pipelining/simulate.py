"""A step of a pipeline, timed: when each action runs, how long ranks wait, what is in flight.

It also is what makes orders legal: `simulate` refuses those that would hang or compute something else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise

from planc.pipelining.orders import Action, Direction, Order, rank_of
from planc.record import record


class ScheduleError(ValueError):
    """Orders that can't be executed; the message names the actions and their ranks."""


@record
class Simulation:
    """A step of a pipeline; times in the unit that the stages' times have, from the step's start."""

    starts: tuple[tuple[float, ...], ...]
    """Of every rank's actions, in its order."""
    ends: tuple[tuple[float, ...], ...]
    seconds: float
    """Until the last rank is done."""
    bubble: tuple[float, ...]
    """For each rank, the share of the step in which it computes nothing, from 0 to 1."""
    in_flight: tuple[int, ...]
    """For each stage, the most micro batches whose forward is done and whose backward is not."""
    rank_in_flight: tuple[int, ...]
    """The same for each rank, in sum over its stages at any one time."""


def simulate(
    orders: Sequence[Order],
    *,
    num_stages: int,
    forward: Sequence[float],
    backward: Sequence[float],
    message: float = 0.0,
) -> Simulation:
    """The step that the orders of all pp ranks make.

    `forward` and `backward` are each stage's time for one micro batch, `message` is the time from a send to
    its arrival on another rank. A rank waits for what it receives, and never for what it sends.

    Raises ScheduleError for an action that is missing, is there twice or is on a wrong rank, a backward
    before its forward, a deadlock, and messages of one kind between two ranks (activations, or gradients)
    that are received in another order than they are sent: NCCL has no tags to tell them apart.
    """
    steps = _Steps(orders, num_stages=num_stages)
    _check_messages(steps)
    ends = _run(steps, forward=forward, backward=backward, message=message)
    seconds = max(end[-1] for end in ends)
    durations = [[*forward, *backward][code // steps.num_micro_batches] for code in range(steps.num_codes)]
    starts = [
        tuple(end - durations[code] for code, end in zip(codes, rank_ends, strict=True))
        for codes, rank_ends in zip(steps.codes, ends, strict=True)
    ]
    busy = [sum(durations[code] for code in codes) for codes in steps.codes]
    in_flight, rank_in_flight = _in_flight(steps)
    return Simulation(
        starts=tuple(starts),
        ends=tuple(map(tuple, ends)),
        seconds=seconds,
        bubble=tuple(1 - own / seconds if seconds else 0.0 for own in busy),
        in_flight=in_flight,
        rank_in_flight=rank_in_flight,
    )
