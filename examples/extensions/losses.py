"""Losses of one's own: focal loss, and cross entropy that weighs each label."""

import torch
from torch.nn.functional import cross_entropy

from planc.extend import loss


@loss("focal")
def focal(logits, labels, *, gamma: float = 2.0):
    """Cross entropy that counts less, the surer the model is of the label."""
    values = cross_entropy(logits, labels, reduction="none")
    return (1 - (-values).exp()) ** gamma * values


@loss("weighted")
def weighted(logits, labels, *, input_ids, newline: float = 1.0, after_space: float = 1.0):
    """Cross entropy of bytes, with weights for newlines and for the first byte of a word."""
    values = cross_entropy(logits, labels, reduction="none")
    weights = torch.where(labels == 10, newline, 1.0) * torch.where(input_ids == 32, after_space, 1.0)
    return weights.to(values.dtype) * values
