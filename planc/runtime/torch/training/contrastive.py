"""The contrastive loss of pairs of texts that belong together, by the vectors of both.

Each query is compared with the positives of its group: its own, and those of its neighbors, which are its
negatives. A group is in one micro-batch of one rank, so no rank needs another's vectors, and the groups are
the same on every mesh.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from planc.graph.ops import ComputeContrastiveLoss
from planc.runtime.data.packing import IGNORED_LABEL
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import LocalBatch, Logits, Loss, TokenCount
from planc.runtime.torch.training.step_loss import StepLoss
from planc.vocab import Pooling


def compute_contrastive_loss(
    run: Run,
    op: ComputeContrastiveLoss,
    logits: Logits,
    batch: LocalBatch,
    tokens: TokenCount,
    step_loss: StepLoss,
) -> Loss:
    """A micro-batch's share of the mean over the queries of a step, of hidden states [B, S, width]."""
    assert batch.lengths is not None, "data in matched pairs has them"
    vectors = F.normalize(pooled(logits.values, batch.lengths, op.pooling), dim=-1)
    queries, positives = vectors.view(-1, op.group, 2, vectors.shape[-1]).unbind(2)
    cosines = (queries @ positives.mT).flatten(0, 1)
    # A query has one label, at its first position; a sequence beyond the end of an evaluation has none.
    is_pair = (batch.labels[::2, 0] != IGNORED_LABEL).view(-1, op.group)
    is_other = is_pair.logical_not().repeat_interleave(op.group, dim=0)
    scores = (cosines / op.temperature).masked_fill(is_other, torch.finfo(cosines.dtype).min)
    own = torch.arange(op.group, device=scores.device).expand_as(is_pair)
    labels = own.where(is_pair, IGNORED_LABEL).flatten()
    step_loss.count_right(scores, labels, num_labels=tokens.labels)
    losses = F.cross_entropy(scores, labels, ignore_index=IGNORED_LABEL, reduction="sum")
    loss = losses / tokens.labels.clamp(min=1)
    step_loss.add(loss.detach(), batch)
    return Loss(loss)


def pooled(hidden: Tensor, lengths: Tensor, pooling: Pooling) -> Tensor:
    """[B, width], float32 at least, of hidden states [B, S, width]; texts have the first `lengths` [B]."""
    wide = torch.promote_types(hidden.dtype, torch.float32)
    match pooling:
        case Pooling.CLS:
            return hidden[:, 0].to(wide)
        case Pooling.LAST:
            return hidden[torch.arange(len(hidden), device=hidden.device), lengths - 1].to(wide)
        case Pooling.MEAN:
            places = torch.arange(hidden.shape[1], device=hidden.device)
            shares = (places < lengths[:, None]).to(wide) / lengths[:, None]
            return (shares[:, None] @ hidden.to(wide)).squeeze(1)
