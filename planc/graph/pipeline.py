"""The pipeline that a graph runs: its stages, and what each pp rank runs in order."""

from __future__ import annotations

from planc.graph.graph import Graph
from planc.graph.ops import Accumulate, SplitPipeline
from planc.pipelining.order_text import parse_order
from planc.pipelining.orders import Direction, Order
from planc.pipelining.simulate import Simulation, simulate
from planc.record import record

SLOTS = {Direction.FORWARD: 1, Direction.BACKWARD: 2}
"""The time of an action where stages are equal: a backward has two matmuls for each of a forward."""


@record
class Pipeline:
    """The split of the model, and the orders of all pp ranks."""

    split: SplitPipeline
    orders: tuple[Order, ...]
    num_micro_batches: int

    @property
    def num_ranks(self) -> int:
        return len(self.orders)

    @property
    def num_stages(self) -> int:
        return len(self.split.stages)

    def equal_step(self) -> Simulation:
        """The step in slots, with stages of equal time and messages that take none."""
        forward, backward = ([slots] * self.num_stages for slots in SLOTS.values())
        return simulate(self.orders, num_stages=self.num_stages, forward=forward, backward=backward)


def pipeline_of(graph: Graph) -> Pipeline | None:
    """A graph's pipeline; None if every rank has all layers."""
    split = next((op for op in graph.setup if isinstance(op, SplitPipeline)), None)
    loop = next((op for op in graph.step if isinstance(op, Accumulate)), None)
    if split is None or loop is None:
        return None
    return Pipeline(split, tuple(map(parse_order, loop.orders)), loop.times)
