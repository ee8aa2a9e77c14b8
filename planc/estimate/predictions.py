"""The collectives that a rank will send, as counts to compare with those that it sent."""

from __future__ import annotations

from collections.abc import Mapping

from planc.estimate.at_intervals import at_intervals
from planc.estimate.collectives import as_called, collectives
from planc.estimate.parts import parts
from planc.estimate.rank_work import rank_work
from planc.estimate.units import units
from planc.graph.graph import Graph
from planc.graph.ops import StepOptimizer
from planc.inventory.schema import Inventory


def predictions(
    graph: Graph, inventory: Inventory, *, rank: int, is_cuda: bool = False, logs_sample_ids: bool = False
) -> Mapping[str, Mapping[tuple[str, tuple[str, ...], int | None], int]]:
    """Counts by (kind, dims of the group, bytes of the rank's input), by the op that ends the count.

    The optimizer's step ends the count of a step; ops that are not due in every step end their own.
    """
    stages = parts(graph, inventory)
    part = stages[rank // (graph.world_size // len(stages))] if stages else None
    work = part.work if part is not None else rank_work(graph, inventory)
    sends = (part.sends,) if part is not None else ()
    step = next(op.name for op in graph.step if isinstance(op, StepOptimizer))
    counted = {step: as_called((*collectives(work, units=units(work)), *sends), knows_routing=False)}
    for interval in at_intervals(work, is_cuda=is_cuda, logs_sample_ids=logs_sample_ids):
        counted[interval.op] = as_called(interval.collectives, knows_routing=False)
    return {
        op: {(kind, (*over,), num_bytes): count for (kind, over, num_bytes), count in found.items()}
        for op, found in counted.items()
    }
