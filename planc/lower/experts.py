"""The lowering of experts: on which ranks they are, what they take, and what is counted of them."""

from __future__ import annotations

from collections.abc import Iterator

from planc.graph.ops import CapExperts, CountExperts, ShardExperts
from planc.inventory.routers import routers
from planc.plan.bind import BoundPlan
from planc.plan.expert_shards import shares_experts


def shard_experts(bound: BoundPlan) -> Iterator[ShardExperts]:
    """One op for all experts that tokens are dispatched to."""
    spec = bound.plan.expert_parallel
    if spec is not None and bound.experts:
        yield ShardExperts(
            modules=tuple(bound.experts),
            size=spec.size,
            over=spec.on,
            by_features=tuple(fqn for fqn in bound.experts if not shares_experts(bound, fqn)),
            span=spec.span,
        )


def cap_experts(bound: BoundPlan) -> Iterator[CapExperts]:
    """One op for all experts with a capacity, on ranks of their own or not."""
    spec = bound.plan.expert_parallel
    if spec is not None and spec.capacity is not None and bound.capped:
        span = bound.plan.span("expert_parallel.capacity")
        yield CapExperts(modules=tuple(bound.capped), capacity=spec.capacity, span=span)


def count_experts(bound: BoundPlan) -> Iterator[CountExperts]:
    """One op for all experts that are called with the numbers that their router chose.

    Compiled code has no place for a count.
    """
    found = [router for router in routers(bound.inventory) if _is_called_with_numbers(bound, router.experts)]
    layers = tuple((one.experts, one.num_experts) for one in found if not _is_compiled(bound, one.experts))
    if layers:
        yield CountExperts(layers=layers, span=bound.plan.span("train.log_every"))


def _is_called_with_numbers(bound: BoundPlan, fqn: str) -> bool:
    module = bound.inventory.get(fqn)
    return module is not None and module.routing is not None


def _is_compiled(bound: BoundPlan, fqn: str) -> bool:
    return any(fqn == module or fqn.startswith(f"{module}.") for module in bound.compiled)
