"""The loss of a plan as ops: its settings, its value, and the reference or the teacher that it has."""

from __future__ import annotations

from collections.abc import Iterator

from planc.extend.reference import Extension
from planc.graph.ops import (
    BuildDistillationLoss,
    BuildLoss,
    BuildPreferenceLoss,
    ComputeContrastiveLoss,
    ComputeLoss,
    ComputePairLoss,
    ComputeReference,
    EvaluationOp,
    LoadLoss,
    OpenTeacher,
)
from planc.lower.data import evaluations
from planc.lower.stated import stated
from planc.plan.bind import BoundPlan
from planc.plan.loss_chunks import num_chunks, vocab_over
from planc.plan.spec import Plan
from planc.plan.task import Embedding
from planc.plan.train import Contrastive, CrossEntropy, Distillation, Preference
from planc.vocab import TOKEN_DIMS, MeshDim, Task


def build_loss(
    plan: Plan,
) -> Iterator[LoadLoss | BuildPreferenceLoss | BuildDistillationLoss | BuildLoss]:
    """One op, if the loss has settings."""
    loss, span = plan.train.loss, plan.span("train.loss")
    if isinstance(loss, Extension):
        yield LoadLoss(extension=loss, span=span)
    elif isinstance(loss, Preference):
        yield BuildPreferenceLoss(beta=loss.beta, label_smoothing=loss.label_smoothing, span=span)
    elif isinstance(loss, Distillation):
        yield BuildDistillationLoss(temperature=loss.temperature, weight=loss.weight, span=span)
    elif isinstance(loss, CrossEntropy) and loss.has_terms:
        yield BuildLoss(label_smoothing=loss.label_smoothing, z_loss=loss.z_loss, span=span)


def compute_loss(bound: BoundPlan) -> ComputeLoss:
    """The op of a micro-batch's loss, of whole logits or of parts of them."""
    plan, loss, chunks = bound.plan, bound.plan.train.loss, num_chunks(bound)
    head, logits = bound.inventory.head, bound.inventory.logits
    fields = {"vocab_over": vocab_over(bound), "span": plan.span("model"), **stated(ComputeLoss, plan)}
    fields["by_sequence"] = bound.inventory.task is Task.SEQUENCE_CLASSIFICATION
    if chunks > 1 and head is not None and logits is not None:
        span = plan.span("train.loss_chunks")
        fields |= {"chunks": chunks, "head": head.fqn, "logits": logits, "span": span}
    if isinstance(loss, Preference):
        return ComputePairLoss(over=plan.context_parallel.on if plan.context_parallel else (), **fields)
    if isinstance(loss, Contrastive) and isinstance(plan.model.task, Embedding):
        return ComputeContrastiveLoss(
            pooling=plan.model.task.pooling, temperature=loss.temperature, group=loss.group, **fields
        )
    return ComputeLoss(**fields)


def compute_references(plan: Plan, body: tuple[EvaluationOp, ...]) -> Iterator[ComputeReference]:
    """One op for the training data and for each evaluation, if the loss is of pairs."""
    if isinstance(plan.train.loss, Preference):
        path = plan.train.loss.reference
        for label in ("", *(label for label, _, _ in evaluations(plan))):
            span = plan.span("train.loss")
            yield ComputeReference(
                label=label, over=(MeshDim.PP, *TOKEN_DIMS), body=body, path=path, span=span
            )


def open_teacher(plan: Plan) -> Iterator[OpenTeacher]:
    """One op, if the loss has a teacher."""
    loss = plan.train.loss
    if isinstance(loss, Distillation):
        span = plan.span("train.loss")
        yield OpenTeacher(teacher=loss.teacher, top_k=loss.top_k, path=loss.logits, span=span)
