"""Tensor parallelism as ops: how modules are sharded, and what happens at their edges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planc.graph.ops import HeadArgument, Rows, ShardTensorParallel, ShareHeads
from planc.inventory.adapters import adapted_layers, is_magnitude
from planc.inventory.schema import Attention, KvProjection, OwnHeads
from planc.plan.bind import Assignment, BoundPlan
from planc.plan.divided_heads import attentions_with_replicated_kv, divided_heads
from planc.styles.edges import WHOLE, At, Edge, distribution, normal
from planc.styles.modules import REPLICATED_WITH_GRAD_ALLREDUCE
from planc.styles.style import Boundary, StyleUse, edges, use
from planc.vocab import DOWN, MAGNITUDE, UP, Partial, Placement, Replicate, Shard, ancestors

_SQUARES = Edge(At.INPUT, distribution(Partial()), WHOLE)
"""The squared lengths of a weight's rows, of which each rank has some columns: they have no gradient."""
_Placements = tuple[tuple[str, Placement], ...]
_Family = tuple[str, int, StyleUse, tuple[Edge, ...], _Placements, Rows | None]
"""A module's last name and depth, and how it is sharded: what modules of one op have in common."""


def shard_tensor_parallel(bound: BoundPlan) -> Iterator[ShardTensorParallel]:
    """One op for each way of sharding modules, in the model's order."""
    if bound.plan.tensor_parallel is None:
        return
    made: dict[tuple[StyleUse, bool], tuple[Edge, ...]] = {}
    families: dict[_Family, list[Assignment]] = {}
    rows = _rows(bound)
    adapters = dict(_adapters(bound))
    for fqn, assignment in (*bound.styles.items(), *adapters.items()):
        key = assignment.use, _is_prepared(bound, fqn)
        if key not in made:
            made[key] = edges(assignment.style, assignment.use, is_prepared=key[1])
        name, depth = fqn.rpartition(".")[2], fqn.count(".")
        at_edges = _inside(fqn, assignment) if fqn in adapters else made[key]
        family = name, depth, assignment.use, at_edges, _placements(bound, assignment), rows.get(fqn)
        families.setdefault(family, []).append(assignment)
    for (_, _, style_use, at_edges, placements, of_rank), members in families.items():
        yield ShardTensorParallel(
            modules=tuple(member.fqn for member in members),
            use=style_use,
            edges=at_edges,
            parameters=placements,
            rows=of_rank,
            over=bound.plan.tensor_parallel.on,
            span=members[0].span,
        )


def _adapters(bound: BoundPlan) -> Iterator[tuple[str, Assignment]]:
    """Yield the assignments of the parts of each adapter, with the layer that it belongs to.

    They compute inside of that layer's edges. Where ranks hold rows of its weight, they hold the same of B's
    and of the rows' lengths, and all of A's; where they hold columns, those of A's, and all else. What is
    whole computes different things on each rank, so its gradient is summed over ranks.
    """
    for fqn in adapted_layers(bound.inventory):
        of_layer = bound.styles.get(fqn)
        if of_layer is None or not of_layer.parameters:
            continue
        has_columns, style = of_layer.placement("weight") == Shard(1), REPLICATED_WITH_GRAD_ALLREDUCE
        summed = replace(of_layer, style=style, parameters={}, use=use(style, Boundary()))
        for part in (DOWN, UP, MAGNITUDE):
            name, is_whole = f"{fqn}.{part}", (part == DOWN) is not has_columns
            if bound.inventory.get(name) is not None:
                yield name, replace(summed if is_whole else of_layer, fqn=name)


def _inside(fqn: str, assignment: Assignment) -> tuple[Edge, ...]:
    """The edges of a part of an adapter."""
    return (_SQUARES,) if is_magnitude(fqn) and not assignment.parameters else ()


def _rows(bound: BoundPlan) -> dict[str, Rows]:
    """Return the rows that a rank computes of projections to replicated keys and values."""
    projections = bound.inventory.kv_projections()
    return {
        fqn: _rows_of(*projections[fqn], tp=bound.plan.mesh.tp)
        for fqn, assignment in bound.styles.items()
        if assignment.style.shares_heads
    }


def _rows_of(attention: Attention | OwnHeads, projection: KvProjection, *, tp: int) -> Rows:
    copies = tp // attention.num_kv_heads
    queries = ((projection.query_width, 1),) if projection.query_width else ()
    return Rows((*queries, *((width, copies) for width in projection.kv_widths)))


def share_heads(bound: BoundPlan) -> Iterator[ShareHeads]:
    """One op for all attentions whose code counts its heads by the same attributes."""
    if bound.plan.tensor_parallel is None:
        return
    groups: dict[ShareHeads, list[tuple[str, Assignment]]] = {}
    replicating = attentions_with_replicated_kv(bound)
    for attention, assignment in divided_heads(bound):
        is_replicated = attention.fqn in replicating
        shared = _heads_of_rank(attention, bound, is_replicated=is_replicated)
        if shared != ShareHeads(modules=(), counts=(), over=shared.over):
            groups.setdefault(shared, []).append((attention.fqn, assignment))
    for shared, members in groups.items():
        yield replace(shared, modules=tuple(fqn for fqn, _ in members), span=members[0][1].span)


def _heads_of_rank(attention: Attention | OwnHeads, bound: BoundPlan, *, is_replicated: bool) -> ShareHeads:
    """Return the op that shares heads for an attention of a rank's heads, with no modules yet."""
    over = bound.plan.tensor_parallel.on if bound.plan.tensor_parallel else ()
    if is_replicated and (kv := attention.shared_kv) is not None:
        return ShareHeads(
            modules=(),
            counts=kv.counts,
            copies=bound.plan.mesh.tp // attention.num_kv_heads,
            group_counts=kv.group_counts,
            kv_counts=kv.kv_counts,
            over=over,
        )
    arguments = tuple(
        HeadArgument(one.argument, one.tensor_dim, attention.num_heads, one.is_per_sample)
        for one in attention.per_head
    )
    return ShareHeads(modules=(), counts=attention.counts, arguments=arguments, over=over)


def _is_prepared(bound: BoundPlan, fqn: str) -> bool:
    """Whether a module reads what the nearest container around it prepares for all that read it by parts."""
    for container in ancestors(fqn):
        around = bound.styles.get(container)
        if around is None or not around.style.prepares:
            continue
        if not around.style.reads_by_parts or normal(around.use.computes_on) != Replicate():
            # Inside, the gradient of its input is whole or a shard: nothing that ranks have yet to sum.
            return False
        module = bound.inventory.get(fqn)
        assert module is not None, f"{fqn} was matched in this inventory"
        is_inside = any(source.startswith(f"{container}.") for source in module.sources)
        return not is_inside and container not in module.bypassed_containers
    return False


def _placements(bound: BoundPlan, assignment: Assignment) -> _Placements:
    module = bound.inventory.get(assignment.fqn)
    assert module is not None, f"{assignment.fqn} was matched in this inventory"
    return tuple((parameter.name, assignment.placement(parameter.name)) for parameter in module.parameters)
