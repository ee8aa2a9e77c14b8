"""The pipeline of a graph: its stages, what each pp rank runs in order, and when units are gathered."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from planc.graph.graph import Graph
from planc.graph.ops import Accumulate, FullyShard, SplitPipeline
from planc.pipelining.orders import Action, Direction, Order, rank_of, schedule_of
from planc.pipelining.simulate import Simulation, equal_step
from planc.record import record


@record
class _Stay:
    """A time in which a unit of FSDP is gathered: from within `first` on, until within `last`, or its end.

    FSDP2 gathers a unit in each forward and backward of its modules, unless it is gathered already. It frees
    it after a forward if it is to reshard it, and at the end of each backward with all others of the rank,
    those of its other stages; or only at the end of its own stage's last backward
    (torch/distributed/fsdp/_fully_shard/_fsdp_state.py).
    """

    first: Action
    last: Action


@record
class StageUnit:
    """Modules of one stage whose parameters are gathered together."""

    modules: tuple[str, ...]
    stage: int
    reshard_after_forward: bool
    reshard_after_backward: bool

    def stays(self, order: Order) -> tuple[_Stay, ...]:
        """The unit's stays in a step of its rank, in order."""
        stays: list[_Stay] = []
        first: Action | None = None
        own = [action for action in order if action.stage == self.stage]
        last = next((action for action in reversed(own) if action.direction is Direction.BACKWARD), None)
        for action in order:
            is_own = action.stage == self.stage and action.direction is not Direction.WEIGHTS
            if is_own and first is None:
                first = action
            is_backward = action.direction is Direction.BACKWARD
            frees = is_backward and (self.reshard_after_backward or action == last)
            if first is not None and (frees or (is_own and self.reshard_after_forward)):
                stays.append(_Stay(first, action))
                first = None
        if first is not None:
            stays.append(_Stay(first, order[-1]))
        return tuple(stays)


def stage_holding(modules: Sequence[str], stages: Sequence[Sequence[str]]) -> int | None:
    """The stage that has a unit's modules; None for the root, which belongs to none."""
    inside = f"{modules[0]}."
    within = (inside.startswith(tuple(f"{name}." for name in names)) for names in stages)
    return next((stage for stage, is_within in enumerate(within) if is_within), None)


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

    def stays(self, unit: StageUnit) -> tuple[_Stay, ...]:
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
