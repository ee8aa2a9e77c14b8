"""The loss as ops, and what the `balance` block adds to it."""

from __future__ import annotations

from collections.abc import Iterator

from planc.extend.reference import Extension
from planc.graph import ops
from planc.inventory.routers import routers
from planc.lower.data import evaluations
from planc.lower.stated import stated
from planc.plan.balance import Layers, Loss, Over, balance_loss, bias_update, is_balanced
from planc.plan.bind import BoundPlan
from planc.plan.facts import global_batch
from planc.plan.loss_chunks import num_chunks, vocab_over
from planc.plan.spec import Plan
from planc.plan.task import Embedding
from planc.plan.train import Contrastive, CrossEntropy, Distillation, Preference
from planc.vocab import SAMPLE_DIMS, TOKEN_DIMS, MeshDim, Task


def build_loss(
    plan: Plan,
) -> Iterator[ops.LoadLoss | ops.BuildPreferenceLoss | ops.BuildDistillationLoss | ops.BuildLoss]:
    """One op, if the loss has settings."""
    loss, span = plan.train.loss, plan.span("train.loss")
    if isinstance(loss, Extension):
        yield ops.LoadLoss(extension=loss, span=span)
    elif isinstance(loss, Preference):
        yield ops.BuildPreferenceLoss(beta=loss.beta, label_smoothing=loss.label_smoothing, span=span)
    elif isinstance(loss, Distillation):
        yield ops.BuildDistillationLoss(temperature=loss.temperature, weight=loss.weight, span=span)
    elif isinstance(loss, CrossEntropy) and loss.has_terms:
        yield ops.BuildLoss(label_smoothing=loss.label_smoothing, z_loss=loss.z_loss, span=span)


def compute_loss(bound: BoundPlan) -> ops.ComputeLoss:
    """The op of a micro-batch's loss, of whole logits or of parts of them."""
    plan, loss, chunks = bound.plan, bound.plan.train.loss, num_chunks(bound)
    head, logits = bound.inventory.head, bound.inventory.logits
    fields = {"vocab_over": vocab_over(bound), "span": plan.span("model"), **stated(ops.ComputeLoss, plan)}
    fields["by_sequence"] = bound.inventory.task is Task.SEQUENCE_CLASSIFICATION
    if chunks > 1 and head is not None and logits is not None:
        span = plan.span("train.loss_chunks")
        fields |= {"chunks": chunks, "head": head.fqn, "logits": logits, "span": span}
    if isinstance(loss, Preference):
        return ops.ComputePairLoss(over=plan.context_parallel.on if plan.context_parallel else (), **fields)
    if isinstance(loss, Contrastive) and isinstance(plan.model.task, Embedding):
        return ops.ComputeContrastiveLoss(
            pooling=plan.model.task.pooling, temperature=loss.temperature, group=loss.group, **fields
        )
    return ops.ComputeLoss(**fields)


def compute_references(plan: Plan, body: tuple[ops.EvaluationOp, ...]) -> Iterator[ops.ComputeReference]:
    """One op for the training data and for each evaluation, if the loss is of pairs."""
    if isinstance(plan.train.loss, Preference):
        path = plan.train.loss.reference
        for label in ("", *(label for label, _, _ in evaluations(plan))):
            span = plan.span("train.loss")
            yield ops.ComputeReference(
                label=label, over=(MeshDim.PP, *TOKEN_DIMS), body=body, path=path, span=span
            )


def open_teacher(plan: Plan) -> Iterator[ops.OpenTeacher]:
    """One op, if the loss has a teacher."""
    loss = plan.train.loss
    if isinstance(loss, Distillation):
        span = plan.span("train.loss")
        yield ops.OpenTeacher(teacher=loss.teacher, top_k=loss.top_k, path=loss.logits, span=span)


def balance_experts(bound: BoundPlan) -> Iterator[ops.BalanceExperts]:
    """One op, if anything is added to the loss, or biases are moved."""
    plan, inventory = bound.plan, bound.inventory
    known = tuple(routers(inventory))
    if not known or not is_balanced(plan, inventory):
        return
    loss, moves = balance_loss(plan, inventory), bias_update(plan) is not None
    yield ops.BalanceExperts(
        layers=tuple((r.fqn, r.experts, r.num_experts, r.bias if moves else "") for r in known),
        loss=None if loss is None else _switch(bound, loss),
        z_loss=plan.balance.z_loss if plan.balance is not None else None,
        num_sequences=global_batch(plan),
        span=plan.span("balance"),
    )


def sum_routes(bound: BoundPlan) -> Iterator[ops.SumRoutes]:
    """One op, if there is any balance. Ranks of cp share sequences; all share a step.

    Ranks of tp do as those of cp, if routers choose for shards of sequences.
    """
    plan = bound.plan
    if next(balance_experts(bound), None) is None:
        return
    loss = balance_loss(plan, bound.inventory)
    apart = (MeshDim.CP, *_tp_apart(bound))
    dims = () if loss is None else (*(SAMPLE_DIMS if loss.over is Over.STEP else ()), *apart)
    yield ops.SumRoutes(over=dims, span=plan.span("balance"))


def move_biases(bound: BoundPlan) -> Iterator[ops.MoveBiases]:
    """One op, if the plan moves the biases of routers, over the ranks whose routers have different tokens."""
    update = bias_update(bound.plan)
    if update is not None and any(router.bias for router in routers(bound.inventory)):
        over = (*TOKEN_DIMS, *_tp_apart(bound))
        yield ops.MoveBiases(update=update, over=over, span=bound.plan.span("balance.loss"))


def _tp_apart(bound: BoundPlan) -> tuple[MeshDim, ...]:
    """tp, if its ranks route different tokens."""
    spec = bound.plan.expert_parallel
    return (MeshDim.TP,) if spec is not None and spec.on_shards and bound.experts else ()


def _switch(bound: BoundPlan, loss: Loss) -> ops.SwitchLoss:
    plan = bound.plan
    sizes = {
        Over.SEQUENCE: 1,
        Over.MICRO_BATCH: plan.data.micro_batch,
        Over.STEP: global_batch(plan),
    }
    return ops.SwitchLoss(
        coefficient=loss.coefficient,
        num_sequences=sizes[loss.over],
        pooled=loss.layers is Layers.POOLED,
    )
