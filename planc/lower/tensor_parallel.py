"""Tensor parallelism as ops: how modules are sharded, and what happens at their edges."""

from __future__ import annotations

from collections.abc import Iterator

from planc.graph.ops import ShardTensorParallel, ShareHeads
from planc.graph.ops.share_heads import HeadArgument
from planc.plan.bind import Assignment, BoundPlan
from planc.plan.divided_heads import divided_heads
from planc.styles.edges import Edge
from planc.styles.style import StyleUse, edges
from planc.vocab import Placement

_Placements = tuple[tuple[str, Placement], ...]
_Family = tuple[str, int, StyleUse, tuple[Edge, ...], _Placements]
"""A module's last name and depth, and how it is sharded: what modules of one op have in common."""


def shard_tensor_parallel(bound: BoundPlan) -> Iterator[ShardTensorParallel]:
    """One op for each way of sharding modules, in the model's order."""
    if bound.plan.tensor_parallel is None:
        return
    made: dict[tuple[StyleUse, bool], tuple[Edge, ...]] = {}
    families: dict[_Family, list[Assignment]] = {}
    for fqn, assignment in bound.styles.items():
        key = assignment.use, _is_prepared(bound, fqn)
        if key not in made:
            made[key] = edges(assignment.style, assignment.use, is_prepared=key[1])
        name, depth = fqn.rpartition(".")[2], fqn.count(".")
        family = name, depth, assignment.use, made[key], _placements(bound, fqn)
        families.setdefault(family, []).append(assignment)
    for (_, _, use, at_edges, placements), members in families.items():
        yield ShardTensorParallel(
            modules=tuple(member.fqn for member in members),
            use=use,
            edges=at_edges,
            parameters=placements,
            over=bound.plan.tensor_parallel.on,
            span=members[0].span,
        )


def share_heads(bound: BoundPlan) -> Iterator[ShareHeads]:
    """One op for all attentions whose code counts its heads by the same attributes."""
    if bound.plan.tensor_parallel is None:
        return
    alike: dict[tuple[tuple[str, ...], tuple[HeadArgument, ...]], list[tuple[str, Assignment]]] = {}
    for attention, assignment in divided_heads(bound):
        arguments = tuple(
            HeadArgument(one.argument, one.tensor_dim, attention.num_heads, one.is_per_sample)
            for one in attention.per_head
        )
        if attention.counts or arguments:
            alike.setdefault((attention.counts, arguments), []).append((attention.fqn, assignment))
    for (counts, arguments), members in alike.items():
        yield ShareHeads(
            modules=tuple(fqn for fqn, _ in members),
            counts=counts,
            arguments=arguments,
            over=bound.plan.tensor_parallel.on,
            span=members[0][1].span,
        )


def _is_prepared(bound: BoundPlan, fqn: str) -> bool:
    """Whether the nearest container with a prepared input feeds this module, from outside of it."""
    container = fqn
    while "." in container:
        container = container.rpartition(".")[0]
        around = bound.styles.get(container)
        if around is not None and around.style.prepares and around.style.reads_by_parts:
            module = bound.inventory.get(fqn)
            assert module is not None, f"{fqn} was matched in this inventory"
            return not any(source.startswith(f"{container}.") for source in module.sources)
    return False


def _placements(bound: BoundPlan, fqn: str) -> _Placements:
    module = bound.inventory.get(fqn)
    assert module is not None, f"{fqn} was matched in this inventory"
    assignment = bound.styles[fqn]
    return tuple((parameter.name, assignment.placement(parameter.name)) for parameter in module.parameters)
