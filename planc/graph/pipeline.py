"""The pipeline that a graph runs: its stages, and what each pp rank runs in order."""

from __future__ import annotations

from itertools import pairwise

from planc.graph.gathers import StageUnit, Stay, stage_holding
from planc.graph.graph import Graph
from planc.graph.ops import Accumulate, FullyShard, SplitPipeline
from planc.pipelining.orders import Direction, Order, rank_of, schedule_of
from planc.pipelining.simulate import Simulation, equal_step
from planc.record import record


@record
class Pipeline:
    """The split of the model, and the orders of all pp ranks."""

    split: SplitPipeline
    orders: tuple[Order, ...]
    num_micro_batches: int
    units: tuple[StageUnit, ...] = ()
    """FSDP's, without the root, which has no parameters."""

    @property
    def num_ranks(self) -> int:
        return len(self.orders)

    @property
    def num_stages(self) -> int:
        return len(self.split.stages)

    @property
    def schedule(self) -> str:
        """The schedule that the orders follow, and the number of stages, as views print them."""
        name = schedule_of(self.orders, num_stages=self.num_stages)
        return f"{name or 'other orders'}, {self.num_stages} stages"

    def stays(self, unit: StageUnit) -> tuple[Stay, ...]:
        """When a step gathers a unit, and frees it."""
        return unit.stays(self.orders[rank_of(unit.stage, num_ranks=self.num_ranks)])

    def num_weights_in_a_row(self, stage: int) -> int:
        """Count a stage's gradients of weights that follow others without a backward between them."""
        order = self.orders[rank_of(stage, num_ranks=self.num_ranks)]
        own = (one.direction for one in order if one.stage == stage)
        backwards = (direction for direction in own if direction is not Direction.FORWARD)
        return sum(one is two is Direction.WEIGHTS for one, two in pairwise(backwards))

    def equal_step(self) -> Simulation:
        """The step in slots, as if stages took equal time."""
        return equal_step(self.orders, num_stages=self.num_stages)


def pipeline_of(graph: Graph) -> Pipeline | None:
    """A graph's pipeline; None if every rank has all layers, or if a draft's steps have no micro-batch."""
    split = next((op for op in graph.setup if isinstance(op, SplitPipeline)), None)
    loop = next((op for op in graph.step if isinstance(op, Accumulate)), None)
    if split is None or loop is None or not loop.orders:
        return None
    units = (
        StageUnit(group, stage, op.reshard_after_forward, op.reshard_after_backward)
        for op in graph.setup
        if isinstance(op, FullyShard)
        for group in op.groups
        if (stage := stage_holding(group, split.stages)) is not None
    )
    return Pipeline(split, loop.orders, loop.times, tuple(units))
