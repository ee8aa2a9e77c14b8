"""The `balance` block as ops."""

from __future__ import annotations

from collections.abc import Iterator

from planc.graph.ops import BalanceExperts, MoveBiases, SumRoutes, SwitchLoss
from planc.inventory.routers import routers
from planc.plan.balance import Layers, Loss, Over, balance_loss, bias_update, is_balanced
from planc.plan.bind import BoundPlan
from planc.plan.facts import global_batch
from planc.vocab import SAMPLE_DIMS, TOKEN_DIMS, MeshDim


def balance_experts(bound: BoundPlan) -> Iterator[BalanceExperts]:
    """One op, if anything is added to the loss, or biases are moved."""
    plan, inventory = bound.plan, bound.inventory
    known = tuple(routers(inventory))
    if not known or not is_balanced(plan, inventory):
        return
    loss, moves = balance_loss(plan, inventory), bias_update(plan) is not None
    yield BalanceExperts(
        layers=tuple((r.fqn, r.experts, r.num_experts, r.bias if moves else "") for r in known),
        loss=None if loss is None else _switch(bound, loss),
        z_loss=plan.balance.z_loss if plan.balance is not None else None,
        num_sequences=global_batch(plan),
        span=plan.span("balance"),
    )


def sum_routes(bound: BoundPlan) -> Iterator[SumRoutes]:
    """One op, if there is any balance. Ranks of cp share sequences; all share a step.

    Ranks of tp do as those of cp, if routers choose for shards of sequences.
    """
    plan = bound.plan
    if next(balance_experts(bound), None) is None:
        return
    loss = balance_loss(plan, bound.inventory)
    apart = (MeshDim.CP, *_tp_apart(bound))
    dims = () if loss is None else (*(SAMPLE_DIMS if loss.over is Over.STEP else ()), *apart)
    yield SumRoutes(over=dims, span=plan.span("balance"))


def move_biases(bound: BoundPlan) -> Iterator[MoveBiases]:
    """One op, if the plan moves the biases of routers, over the ranks whose routers have different tokens."""
    update = bias_update(bound.plan)
    if update is not None and any(router.bias for router in routers(bound.inventory)):
        over = (*TOKEN_DIMS, *_tp_apart(bound))
        yield MoveBiases(update=update, over=over, span=bound.plan.span("balance.loss"))


def _tp_apart(bound: BoundPlan) -> tuple[MeshDim, ...]:
    """tp, if its ranks route different tokens."""
    spec = bound.plan.expert_parallel
    return (MeshDim.TP,) if spec is not None and spec.on_shards and bound.experts else ()


def _switch(bound: BoundPlan, loss: Loss) -> SwitchLoss:
    plan = bound.plan
    sizes = {
        Over.SEQUENCE: 1,
        Over.MICRO_BATCH: plan.data.micro_batch,
        Over.STEP: global_batch(plan),
    }
    return SwitchLoss(
        coefficient=loss.coefficient,
        num_sequences=sizes[loss.over],
        pooled=loss.layers is Layers.POOLED,
    )
