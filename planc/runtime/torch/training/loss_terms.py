"""Cross entropy with label smoothing and z-loss, of logits whose vocabulary may be sharded.

With `s` for the smoothing, `L` for the logarithm of the sum of exponentials of a token's V logits `x`, and
`y` for its label, its loss is `L - (1 - s) x[y] - s / V sum(x) + z L^2`. The sum and the label's logit travel
together, so ranks exchange as much as for plain cross entropy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from planc.graph.ops import BuildLoss
from planc.runtime.data.packing import IGNORED_LABEL
from planc.runtime.torch.extensions.loss import OwnLoss
from planc.runtime.torch.run import Run
from planc.runtime.torch.training.fused_loss import first_row, over_ranks


@dataclass(frozen=True, slots=True)
class LossWithTerms(OwnLoss):
    """A loss that reads a rank's part of the logits."""

    label_smoothing: float
    z_loss: float

    def of_parts(
        self, logits: Tensor, labels: Tensor, *, group: ProcessGroup | None, vocab_size: int
    ) -> Tensor:
        """Losses [T] of logits [T, vocabulary or this rank's part] and labels [T]; 0 without a label.

        `group` has the ranks among which the vocabulary is sharded, in parts as DTensor's.
        """
        smoothing, z_loss = self.label_smoothing, self.z_loss
        return token_losses(
            logits, labels, group=group, vocab_size=vocab_size, label_smoothing=smoothing, z_loss=z_loss
        )


def token_losses(
    logits: Tensor,
    labels: Tensor,
    *,
    group: ProcessGroup | None,
    vocab_size: int,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> Tensor:
    """Losses [T], as `LossWithTerms.of_parts` has them."""
    rows = labels - first_row(group, vocab_size)
    given = (labels, rows, group, label_smoothing, vocab_size, z_loss)
    losses: Tensor = _Loss.apply(logits, *given)  # type: ignore[no-untyped-call]
    return losses


def build_loss(run: Run, op: BuildLoss) -> OwnLoss:
    return LossWithTerms(torch.nn.functional.cross_entropy, (), op.label_smoothing, op.z_loss)


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        labels: Tensor,
        rows: Tensor,
        group: ProcessGroup | None,
        smoothing: float,
        vocab_size: int,
        z_loss: float,
    ) -> Tensor:
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        is_own = (rows >= 0) & (rows < logits.shape[-1])
        of_labels = wide.gather(-1, rows.where(is_own, 0).unsqueeze(-1)).squeeze(-1).where(is_own, 0)
        targets = (1 - smoothing) * of_labels
        if smoothing:
            targets += smoothing / vocab_size * wide.sum(-1)
        log_sums = wide.logsumexp(-1)
        if group is not None:
            log_sums, targets = over_ranks(log_sums, targets, group)
        ctx.save_for_backward(logits, labels, rows, log_sums)
        ctx.terms = smoothing, vocab_size, z_loss
        losses: Tensor = log_sums - targets + z_loss * log_sums.square()
        return losses.masked_fill_(labels == IGNORED_LABEL, 0)

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Any:
        logits, labels, rows, log_sums = ctx.saved_tensors
        smoothing, vocab_size, z_loss = ctx.terms
        above = above.where(labels != IGNORED_LABEL, 0).to(log_sums.dtype)
        gradient = (logits - log_sums.unsqueeze(-1)).exp_()
        gradient.mul_((above * (1 + 2 * z_loss * log_sums)).unsqueeze(-1))
        if smoothing:
            gradient.sub_((smoothing / vocab_size * above).unsqueeze(-1))
        is_own = (rows >= 0) & (rows < logits.shape[-1])
        at_labels = ((smoothing - 1) * above).where(is_own, 0).unsqueeze(-1)
        gradient.scatter_add_(-1, rows.where(is_own, 0).unsqueeze(-1), at_labels)
        return gradient.to(logits.dtype), *(None,) * 6
