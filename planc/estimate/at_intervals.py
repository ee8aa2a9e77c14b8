"""The bytes that a rank sends in some steps only, and all its collectives as counts.

Some steps log, or compare replicas; evaluations, saves and setup are not part of it. The counts are compared
with those that the rank sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planc.estimate.collectives import as_called, collectives
from planc.estimate.layout import ParameterLayout
from planc.estimate.parts import parts
from planc.estimate.rank_work import RankWork, rank_work
from planc.estimate.result import AtInterval, Collective, Kind
from planc.estimate.units import units
from planc.graph import ops
from planc.graph.graph import Graph
from planc.graph.op import Phase
from planc.graph.ops import StepOptimizer
from planc.inventory.schema import Inventory
from planc.vocab import SAMPLE_DIMS, MeshDim, Replicate

_DIGEST_BYTES = 16
"""A 64-bit digest and its complement."""
_VALUE_BYTES = 8
"""Logged values and flags are int64."""


def at_intervals(
    work: RankWork, *, is_cuda: bool | None = None, logs_sample_ids: bool = False
) -> tuple[AtInterval, ...]:
    """Every op of the step that communicates only when due, on CUDA devices unless the plan has gloo."""
    if is_cuda is None:
        is_cuda = work.graph.init_mesh.backend != "gloo"
    intervals = []
    for op in work.graph.step:
        match op:
            case ops.Log():
                ids = _sample_ids(work, op) if logs_sample_ids else ()
                sent = (*ids, *_logged(work, op, is_cuda=is_cuda))
            case ops.CompareReplicas():
                sent = tuple(_compared(work, op))
            case _:
                continue
        if sent:
            intervals.append(AtInterval(op.name, op.every_steps, sent))
    return tuple(intervals)


def _logged(work: RankWork, op: ops.Log, *, is_cuda: bool) -> Iterator[Collective]:
    """The most of any rank, of every value: on several CPU ranks by way of rank 0, which is cheaper there."""
    if not op.over:
        return
    size = work.graph.world_size
    is_compiled = any(isinstance(one, ops.CompileModules) for one in work.graph.setup)
    # Memory allocated, and with CUDA's allocator also reserved; each rank's own time is in its own place.
    num_bytes = _VALUE_BYTES * (1 + is_cuda + is_compiled + len(Phase) + size)
    kinds = (Kind.ALL_REDUCE,) if is_cuda or size == 2 else (Kind.GATHER, Kind.BROADCAST)
    for kind in kinds:
        yield Collective(op.over, size, kind, op.name, 1, num_bytes)
    for counted in (one for one in work.graph.setup if isinstance(one, ops.CountExperts)):
        capped = work.graph.capacity.modules if work.graph.capacity else ()
        num_counts = sum(number + (fqn in capped) for fqn, number in counted.layers)
        yield Collective(op.over, size, Kind.ALL_REDUCE, op.name, 1, _VALUE_BYTES * num_counts)
    if any(isinstance(op, ops.BalanceExperts) for op in work.graph.setup):
        yield Collective(op.over, size, Kind.ALL_REDUCE, op.name, 1, 2 * _VALUE_BYTES)


def _sample_ids(work: RankWork, op: ops.Log) -> Iterator[Collective]:
    """The ids of all sequences of a step, which a run logs if it is asked to."""
    graph = work.graph
    num_steps = next(one.times for one in graph.step if isinstance(one, ops.Accumulate))
    micro_batch = next(one.micro_batch for one in graph.setup if isinstance(one, ops.OpenData))
    num_bytes = _VALUE_BYTES * num_steps * micro_batch
    for mesh_dim in reversed(SAMPLE_DIMS):
        if (size := graph.size(mesh_dim)) > 1:
            yield Collective((mesh_dim,), size, Kind.ALL_GATHER, op.name, 1, num_bytes)
            num_bytes *= size


def _compared(work: RankWork, op: ops.CompareReplicas) -> Iterator[Collective]:
    """Digests along every mesh dim with copies, then whether any differ, over all ranks."""
    for mesh_dim in op.over:
        size = work.graph.size(mesh_dim)
        copies = sum(_is_copied(work.graph, layout, mesh_dim) for layout in work.layouts.values())
        if mesh_dim is MeshDim.PP:
            size, copies = 2, len(work.tied_layouts)
        if copies and size > 1:
            num_bytes = copies * _DIGEST_BYTES
            yield Collective((mesh_dim,), size, Kind.ALL_REDUCE, op.name, 1, num_bytes)
    wide = tuple(mesh_dim for mesh_dim, size in work.graph.mesh if size > 1)
    if wide:
        yield Collective(wide, work.graph.world_size, Kind.ALL_REDUCE, op.name, 1, _VALUE_BYTES)


def _is_copied(graph: Graph, layout: ParameterLayout, mesh_dim: MeshDim) -> bool:
    return all(
        placement == Replicate()
        for dims, placement in layout.placements
        if any(mesh_dim in graph.mesh_dims(dim) for dim in dims)
    )


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
