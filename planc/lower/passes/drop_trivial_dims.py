"""Removes ops and dims that a mesh dim of one rank makes pointless."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from planc.graph import ops
from planc.graph.graph import AnyOp, Graph
from planc.vocab import ExpertDim

_DIM_FIELDS = ("over", "count_over", "vocab_over")


def drop_trivial_dims(graph: Graph) -> Graph:
    """The graph without collectives over one rank, and without the ops that only they need.

    FSDP stays if it sets a dtype or offloads, which matters on one rank too.
    """
    return replace(
        graph,
        setup=tuple(op for op in (_trim(op, graph) for op in graph.setup) if op is not None),
        step=tuple(op for op in (_trim(op, graph) for op in graph.step) if op is not None),
        save=tuple(op for op in (_trim(op, graph) for op in graph.save) if op is not None),
    )


def _trim(op: AnyOp, graph: Graph) -> AnyOp | None:
    if isinstance(op, ops.Accumulate | ops.Evaluate | ops.ComputeReference):
        body = tuple(_trim_dims(inner, graph) for inner in op.body)
        return replace(_trim_dims(op, graph), body=body)  # type: ignore[no-any-return]
    if isinstance(op, ops.FullyShard):
        return _trim_shard(_on_all_ranks(op, graph), graph)
    if isinstance(op, ops.PrefetchUnits) and not _gathers(graph):
        return None
    trimmed: AnyOp = _trim_dims(op, graph)
    of_ranks = ops.ShardTensorParallel | ops.ShareHeads | ops.ShardExperts | ops.AllReduceGradients
    if isinstance(trimmed, of_ranks) and not trimmed.over:
        return None
    return trimmed


def _gathers(graph: Graph) -> bool:
    """Whether units are on more than one rank."""
    units = (op for op in graph.setup if isinstance(op, ops.FullyShard))
    return any(graph.size(dim) > 1 for op in units for dim in op.shard_over)


def _on_all_ranks(op: ops.FullyShard, graph: Graph) -> ops.FullyShard:
    """The op, over the mesh dims of experts that have one rank, and so no factors."""
    experts = graph.experts
    if (
        experts is None
        or ExpertDim.EFSDP not in op.shard_over
        or any(graph.size(dim) > 1 for dim in experts.over)
    ):
        return op
    return replace(op, shard_over=tuple(part for dim in op.shard_over for part in graph.mesh_dims(dim)))


def _trim_shard(op: ops.FullyShard, graph: Graph) -> ops.FullyShard | None:
    """Sharding over one rank is kept only for its options; it then keeps one dim, since it needs a mesh."""
    replicate = tuple(dim for dim in op.replicate_over if graph.size(dim) > 1)
    if ExpertDim.EFSDP in op.shard_over:
        # Without a unit of their own, experts that one rank alone holds would be in one of all ranks.
        own = tuple(dim for dim in op.shard_over if dim is ExpertDim.EFSDP or graph.size(dim) > 1)
        return replace(op, shard_over=own, replicate_over=replicate)
    shard = tuple(dim for dim in op.shard_over if graph.size(dim) > 1)
    has_options = op.param_dtype is not None or op.reduce_dtype is not None or op.cpu_offload
    if not shard and not replicate and not has_options:
        return None
    return replace(op, shard_over=shard or op.shard_over[:1], replicate_over=replicate)


def _trim_dims(op: Any, graph: Graph) -> Any:
    changes = {
        op_field.name: tuple(dim for dim in getattr(op, op_field.name) if graph.size(dim) > 1)
        for op_field in fields(op)
        if op_field.name in _DIM_FIELDS
    }
    trimmed = replace(op, **changes) if changes else op
    if isinstance(trimmed, ops.AttachAttention) and not trimmed.over:
        kind = trimmed.kind if trimmed.kind in ("eager", "bidirectional", "encoder_decoder") else "plain"
        return replace(trimmed, kind=kind, balance="none")
    if isinstance(trimmed, ops.ShardContext) and not trimmed.over:
        return replace(trimmed, balance="none", buffers=())
    return trimmed
