"""Tensor parallelism as ops: how modules are sharded, and what happens at their edges."""

from __future__ import annotations

from collections.abc import Iterator

from planc.graph.ops import ShardTensorParallel
from planc.plan.bind import Assignment, BoundPlan
from planc.styles.edges import Edge
from planc.styles.style import edges
from planc.vocab import Placement


def shard_tensor_parallel(bound: BoundPlan) -> Iterator[ShardTensorParallel]:
    """One op for each way of sharding modules, in the model's order."""
    if bound.plan.tensor_parallel is None:
        return
    families: dict[tuple[object, ...], list[Assignment]] = {}
    for fqn, assignment in bound.styles.items():
        alike = (assignment.use, _edges(bound, assignment), _placements(bound, fqn))
        families.setdefault((fqn.rpartition(".")[2], fqn.count("."), *alike), []).append(assignment)
    for members in families.values():
        yield ShardTensorParallel(
            modules=tuple(member.fqn for member in members),
            use=members[0].use,
            edges=_edges(bound, members[0]),
            parameters=_placements(bound, members[0].fqn),
            over=bound.plan.tensor_parallel.on,
            span=members[0].span,
        )


def _edges(bound: BoundPlan, assignment: Assignment) -> tuple[Edge, ...]:
    return edges(assignment.style, assignment.use, is_prepared=_is_prepared(bound, assignment.fqn))


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


def _placements(bound: BoundPlan, fqn: str) -> tuple[tuple[str, Placement], ...]:
    module = bound.inventory.get(fqn)
    assert module is not None, f"{fqn} was matched in this inventory"
    assignment = bound.styles[fqn]
    return tuple((parameter.name, assignment.placement(parameter.name)) for parameter in module.parameters)
