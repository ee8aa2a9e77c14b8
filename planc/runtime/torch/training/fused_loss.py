"""The cross entropy of tokens by two compiled kernels, one forward and one backward.

Between them only the logits exist, in their own dtype, and a number for each token: eager cross entropy makes
log-probabilities and two gradients of all logits in float32, and moves each of them several times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from planc.runtime.data.packing import IGNORED_LABEL

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


class FusedLoss:
    """Computes losses [T] of logits [T, vocabulary or this rank's part] and labels [T].

    The loss of an ignored label is 0.
    """

    def __init__(self, compiled: Compile) -> None:
        self._kernels = compiled(_forward), compiled(_backward)

    def __call__(
        self, logits: Tensor, labels: Tensor, *, group: ProcessGroup | None = None, vocab_size: int
    ) -> Tensor:
        """`group` has the ranks among which the vocabulary is sharded, in parts as DTensor's."""
        first = first_row(group, vocab_size)
        # Labels of other ranks are outside of this part, and so are ignored ones.
        rows = (labels - first) if first else labels
        losses: Tensor = _Loss.apply(logits, labels, rows, group, *self._kernels)  # type: ignore[no-untyped-call]
        return losses


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        labels: Tensor,
        rows: Tensor,
        group: ProcessGroup | None,
        forward: Callable[..., Any],
        backward: Callable[..., Any],
    ) -> Tensor:
        # The code of an evaluation's loss, whose logits have no gradient, is the same.
        log_sums, of_rows = forward(logits.detach(), rows)
        if group is not None:
            log_sums, of_rows = over_ranks(log_sums, of_rows, group)
        ctx.save_for_backward(logits, labels, rows, log_sums)
        ctx.kernel = backward
        found: Tensor = (log_sums - of_rows).masked_fill_(labels == IGNORED_LABEL, 0)
        return found

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Any:
        logits, *others = ctx.saved_tensors
        return ctx.kernel(logits.detach(), *others, above), None, None, None, None, None


def first_row(group: ProcessGroup | None, vocab_size: int) -> int:
    """The first row of this rank's part of a vocabulary, in parts as DTensor's."""
    return 0 if group is None else dist.get_rank(group) * -(-vocab_size // dist.get_world_size(group))


def over_ranks(log_sums: Tensor, of_rows: Tensor, group: ProcessGroup) -> tuple[Tensor, Tensor]:
    """Both of the whole vocabulary, from those of its parts."""
    largest = log_sums.clone()
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    sums = (log_sums - largest).exp_()
    dist.all_reduce(sums, group=group)
    dist.all_reduce(of_rows, group=group)
    return sums.log_().add_(largest), of_rows


def _forward(logits: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The logarithms of sums of exponentials, and the logits of rows of this part, in float32 at least."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    is_own = (rows >= 0) & (rows < logits.shape[-1])
    of_rows = logits.gather(-1, rows.where(is_own, 0).unsqueeze(-1)).squeeze(-1)
    return logits.to(wide).logsumexp(-1), of_rows.to(wide).where(is_own, 0)


def _backward(logits: Tensor, labels: Tensor, rows: Tensor, log_sums: Tensor, above: Tensor) -> Tensor:
    """The gradient of logits: probabilities, less one at the label."""
    above = above.where(labels != IGNORED_LABEL, 0).unsqueeze(-1)
    probabilities = (logits.to(log_sums.dtype) - log_sums.unsqueeze(-1)).exp()
    is_label = torch.arange(logits.shape[-1], device=logits.device) == rows.unsqueeze(-1)
    return ((probabilities - is_label.to(log_sums.dtype)) * above).to(logits.dtype)
