"""The micro-steps that a rehearsal runs, and how many of the step's each of them represents."""

from __future__ import annotations

from planc.graph.graph import Graph
from planc.graph.ops import Accumulate, FullyShard
from planc.graph.pipeline import Pipeline, pipeline_of
from planc.pipelining.orders import Order


def micro_steps(graph: Graph, rank: int) -> tuple[int, ...]:
    """Return how many micro-steps of a step each one that is run represents.

    Without a pipeline there are two: the last, in which gradients are reduced, and one for all before it; and
    the first, if no other gathers parameters.
    """
    pipeline = pipeline_of(graph)
    if pipeline is None:
        (times,) = (op.times for op in graph.step if isinstance(op, Accumulate))
        gathers_once = any(isinstance(op, FullyShard) and not op.reshard_after_backward for op in graph.setup)
        first = (1,) if gathers_once and times > 1 else ()
        rest = times - len(first)
        return (*first, rest - 1, 1) if rest > 1 else (*first, 1)
    return _of_pipeline(pipeline, pipeline.orders[rank * pipeline.num_ranks // graph.world_size])


def _of_pipeline(pipeline: Pipeline, order: Order) -> tuple[int, ...]:
    """Micro-steps in flight at first, then a round in which forwards and backwards alternate, then the
    last ones. The round is like all those that are left out."""
    number, in_a_round = pipeline.num_micro_batches, pipeline.num_ranks
    in_flight = _in_flight(order)
    left_out = max(0, number - 2 * in_flight - 2 * in_a_round) // in_a_round
    found = [1] * (number - left_out * in_a_round)
    for micro_step in range(in_flight, in_flight + in_a_round) if left_out else ():
        found[micro_step] += left_out
    return tuple(found)


def _in_flight(order: Order) -> int:
    """The most micro-batches between their first action and their last."""
    last = {one.micro_batch: place for place, one in enumerate(order)}
    now: set[int] = set()
    most = 0
    for place, action in enumerate(order):
        now.add(action.micro_batch)
        most = max(most, len(now))
        if last.get(action.micro_batch) == place:
            now.remove(action.micro_batch)
    return most
