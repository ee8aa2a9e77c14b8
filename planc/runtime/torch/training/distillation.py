"""The loss of tokens that have a teacher's log-probabilities, of logits whose vocabulary may be sharded.

With `x` for a token's logits, `y` for its label, `T` for the temperature, `w` for the weight, `L(x)` for the
logarithm of the sum of exponentials, and `p` for the softmax of the teacher's stored log-probabilities over
`T`, which sums to 1 over the stored tokens, the loss is

    w T^2 (sum(p log p) - sum(p x / T) + L(x / T)) + (1 - w) (L(x) - x[y])

The model's probabilities are of the whole vocabulary, so what it gives to tokens outside of the stored ones
adds to the loss. The sum over stored tokens and the label's logit travel together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from planc.graph.ops import BuildDistillationLoss, OpenTeacher
from planc.runtime.data.packing import IGNORED_LABEL
from planc.runtime.torch.agreement.agree import agreed
from planc.runtime.torch.extensions.loss import OwnLoss
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import Data, LocalBatch
from planc.runtime.torch.training.fused_loss import first_row, over_ranks
from planc.runtime.torch.training.loss_terms import LossWithTerms, token_losses
from planc.runtime.torch.training.stored_teacher import Layout, require_stored


@dataclass(frozen=True, slots=True)
class DistillationLoss(LossWithTerms):
    """A loss of tokens of which each knows its place in the micro-batch."""

    temperature: float
    weight: float
    teacher_ids: Tensor | None = None
    """[tokens, k]; None for data without a teacher, whose loss is cross entropy."""
    teacher_log_probabilities: Tensor | None = None

    def of_batch(self, batch: LocalBatch) -> DistillationLoss:
        if batch.teacher_ids is None or batch.teacher_log_probabilities is None:
            return self
        ids, log_probabilities = batch.teacher_ids, batch.teacher_log_probabilities
        return replace(
            self,
            teacher_ids=ids.flatten(0, 1),
            teacher_log_probabilities=log_probabilities.flatten(0, 1),
        )

    def of_parts(
        self, logits: Tensor, labels: Tensor, *, group: ProcessGroup | None, vocab_size: int
    ) -> Tensor:
        labels, places = labels.unbind(-1)
        if self.teacher_ids is None or self.teacher_log_probabilities is None:
            return token_losses(logits, labels, group=group, vocab_size=vocab_size)
        ids, log_probabilities = self.teacher_ids[places], self.teacher_log_probabilities[places]
        first, settings = first_row(group, vocab_size), (self.temperature, self.weight)
        given = (labels, labels - first, ids.long() - first, log_probabilities, group, *settings)
        losses: Tensor = _Loss.apply(logits, *given)  # type: ignore[no-untyped-call]
        return losses


def build_distillation_loss(run: Run, op: BuildDistillationLoss) -> OwnLoss:
    return DistillationLoss(
        torch.nn.functional.cross_entropy,
        ("places",),
        label_smoothing=0.0,
        z_loss=0.0,
        temperature=op.temperature,
        weight=op.weight,
    )


@agreed
def open_teacher(run: Run, op: OpenTeacher, data: Data) -> Data:
    """The data, with the teacher's log-probabilities of its sequences."""
    dataset = data.loader.source.dataset
    layout = Layout(dataset.num_sequences, dataset.sequence_length, op.top_k)
    origin = {"teacher": op.teacher, "top_k": str(op.top_k), "data": data.fingerprint}
    teacher = require_stored(run.paths.base / op.path, layout, origin)
    run.observer.noted(f"teacher: top {op.top_k} of {op.teacher}, of {layout.num_sequences} sequences")
    return replace(data, teacher=teacher)


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        labels: Tensor,
        rows: Tensor,
        teacher_rows: Tensor,
        log_probabilities: Tensor,
        group: ProcessGroup | None,
        temperature: float,
        weight: float,
    ) -> Tensor:
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        log_targets = (log_probabilities.to(wide.dtype) / temperature).log_softmax(-1)
        # What the derivatives of the loss have, next to the model's own probabilities.
        of_teacher, of_label = weight * temperature * log_targets.exp(), 1 - weight
        targets = of_label * _own(wide, rows.unsqueeze(-1)).squeeze(-1)
        targets += (of_teacher * _own(wide, teacher_rows)).sum(-1)
        # At a temperature of 1, both parts have the same logarithm of the sum of exponentials.
        factors = {temperature: weight * temperature**2}
        if of_label:
            factors[1.0] = factors.get(1.0, 0.0) + of_label
        log_sums = torch.stack([(wide / divisor).logsumexp(-1) for divisor in factors])
        if group is not None:
            log_sums, targets = over_ranks(log_sums, targets, group)
        ctx.save_for_backward(logits, labels, rows, teacher_rows, of_teacher, log_sums)
        ctx.terms = factors, of_label
        losses = temperature * (of_teacher * log_targets).sum(-1) - targets
        for factor, sums in zip(factors.values(), log_sums, strict=True):
            losses += factor * sums
        return losses.masked_fill_(labels == IGNORED_LABEL, 0)

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Any:
        logits, labels, rows, teacher_rows, of_teacher, log_sums = ctx.saved_tensors
        factors, of_label = ctx.terms
        above = above.where(labels != IGNORED_LABEL, 0).to(log_sums.dtype).unsqueeze(-1)
        gradient: Any = 0
        for (divisor, factor), sums in zip(factors.items(), log_sums, strict=True):
            part = (logits.to(sums.dtype) / divisor).sub_(sums.unsqueeze(-1)).exp_()
            gradient = part.mul_(factor / divisor * above).add_(gradient)
        _scatter(gradient, rows.unsqueeze(-1), -of_label * above)
        _scatter(gradient, teacher_rows, -of_teacher * above)
        return gradient.to(logits.dtype), *(None,) * 7


def _own(logits: Tensor, rows: Tensor) -> Tensor:
    """[T, n]: the logits of rows [T, n] of this rank's part of the vocabulary, 0 for those of other ranks."""
    is_own = (rows >= 0) & (rows < logits.shape[-1])
    return logits.gather(-1, rows.where(is_own, 0)).where(is_own, 0)


def _scatter(gradient: Tensor, rows: Tensor, values: Tensor) -> None:
    """Add values [T, n] to rows [T, n], but for those of other ranks."""
    is_own = (rows >= 0) & (rows < gradient.shape[-1])
    gradient.scatter_add_(-1, rows.where(is_own, 0), values.where(is_own, 0))
