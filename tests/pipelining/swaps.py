"""Every swap of two actions in one rank's order, judged twice: `python -m tests.pipelining.swaps`.

`simulate` must refuse exactly what ranks with first-in-first-out channels can't run. Prints a row for each
pipeline, and exits with 1 if the two disagree on any swap.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from itertools import combinations

from planc.pipelining.orders import Order, Schedule, make_orders
from planc.pipelining.simulate import ScheduleError, equal_step, simulate

Pipeline = tuple[Schedule, int, int, int]
"""Schedule, ranks, stages a rank, micro batches."""

PIPELINES: tuple[Pipeline, ...] = tuple(
    (schedule, pp, v, m)
    for schedule, v in (
        (Schedule.GPIPE, 1),
        (Schedule.ONE_F_ONE_B, 1),
        (Schedule.ZERO_BUBBLE, 1),
        (Schedule.INTERLEAVED, 2),
    )
    for pp in (2, 3, 4, 8)
    for m in (1, 2, 3, 4, 8, 16, 32)
)


def outcome(orders: list[Order], *, num_stages: int, room: float = math.inf) -> str:
    """What a run of these orders does, without a clock: "completes", or how it fails.

    Any run ends the same way: ranks share nothing but channels, and wait for one of them at a time. A channel
    has `room` for so many messages.
    """
    num_ranks = len(orders)
    left = [deque(_doings(order, num_stages)) for order in orders]
    channels = {
        (rank, (rank + step) % num_ranks, way): deque[tuple[int, int]]()
        for rank in range(num_ranks)
        for way, step in (("F", 1), ("B", -1))
    }
    done: set[tuple[int, int, str]] = set()
    needed = {"B": "F", "W": "B"}
    moved = True
    while moved:
        moved = False
        for rank, doings in enumerate(left):
            while doings:
                what, stage, way, i = doings[0]
                step = 1 if way == "F" else -1
                if what == "run":
                    if way in needed and (stage, i, needed[way]) not in done:
                        return f"runs {way} before {needed[way]}"
                    done.add((stage, i, way))
                else:
                    incoming = channels[(rank - step) % num_ranks, rank, way]
                    outgoing = channels[rank, (rank + step) % num_ranks, way]
                    if (what == "receive" and not incoming) or (what == "send" and len(outgoing) == room):
                        break
                    if what == "receive" and incoming.popleft() != (stage, i):
                        return "mixes up messages"
                    if what == "send":
                        outgoing.append((stage + step, i))
                doings.popleft()
                moved = True
    return "hangs" if any(left) else "completes"


def _doings(order: Order, num_stages: int) -> Iterator[tuple[str, int, str, int]]:
    """An order's receives, runs and sends: which of them, stage, way, micro batch."""
    for action in order:
        stage, way, i = action.stage, str(action.direction), action.micro_batch
        # Weights come from nowhere and go nowhere.
        step = {"F": 1, "B": -1}.get(way, num_stages)
        if 0 <= stage - step < num_stages:
            yield "receive", stage, way, i
        yield "run", stage, way, i
        if 0 <= stage + step < num_stages:
            yield "send", stage, way, i


def swaps(orders: tuple[Order, ...]) -> Iterator[list[Order]]:
    """The orders with two actions of one rank in each other's place, for every two of every rank."""
    for rank, order in enumerate(orders):
        for first, second in combinations(range(len(order)), 2):
            swapped = list(order)
            swapped[first], swapped[second] = order[second], order[first]
            yield [*orders[:rank], tuple(swapped), *orders[rank + 1 :]]


def is_accepted(orders: list[Order], *, num_stages: int) -> bool:
    """Whether planc would run these orders."""
    times = [1.0] * num_stages
    try:
        simulate(orders, num_stages=num_stages, forward=times, backward=times)
    except ScheduleError:
        return False
    return True


def judge(pipeline: Pipeline, *, sample: int | None = None) -> Counter[tuple[str, bool]]:
    """How many swaps end in which way, and whether planc accepts them; of all, or of a random sample."""
    schedule, pp, v, m = pipeline
    every = list(swaps(make_orders(schedule, num_ranks=pp, stages_per_rank=v, num_micro_batches=m)))
    chosen = every if sample is None else random.Random(0).sample(every, min(sample, len(every)))
    return Counter((outcome(one, num_stages=pp * v), is_accepted(one, num_stages=pp * v)) for one in chosen)


def disagreements(counts: Counter[tuple[str, bool]]) -> int:
    """Swaps that planc accepts and that fail, or that it refuses and that complete."""
    return sum(count for (end, accepted), count in counts.items() if accepted != (end == "completes"))


def milliseconds(schedule: Schedule, stages_per_rank: int) -> float:
    """Of CPU time, to simulate 128 micro batches on 16 ranks, as `check` does: the least of ten."""
    orders = make_orders(schedule, num_ranks=16, stages_per_rank=stages_per_rank, num_micro_batches=128)
    took = []
    for _ in range(10):
        start = time.process_time()
        equal_step(orders, num_stages=16 * stages_per_rank)
        took.append(time.process_time() - start)
    return 1000 * min(took)


def main() -> int:
    """Time a simulation, then judge every swap of all pipelines."""
    for schedule, v in ((Schedule.ONE_F_ONE_B, 1), (Schedule.ZERO_BUBBLE, 1), (Schedule.INTERLEAVED, 4)):
        took = milliseconds(schedule, v)
        print(f"{schedule}, pp 16, stages {16 * v}, micro batches 128: simulated in {took:.1f} ms, goal 20")
    start = time.monotonic()
    total: Counter[tuple[str, bool]] = Counter()
    for pipeline in PIPELINES:
        counts = judge(pipeline)
        total += counts
        schedule, pp, v, m = pipeline
        print(f"{schedule:12} pp {pp} stages {pp * v:2} micro batches {m:2}: {_row(counts)}", flush=True)
    print(f"{total.total():_} swaps in {time.monotonic() - start:.0f} s: {_row(total)}")
    return 1 if disagreements(total) else 0


def _row(counts: Counter[tuple[str, bool]]) -> str:
    ends = Counter[str]()
    for (end, _), count in counts.items():
        ends[end] += count
    listed = "".join(f"{count:_} {end}, " for end, count in sorted(ends.items()))
    return f"{listed}{disagreements(counts)} disagree"


if __name__ == "__main__":
    sys.exit(main())
