"""Attention masks of sliding windows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Windows:
    """The biases of the windows that a model's layers have, each computed once.

    All layers share them, and what they save for backward is one tensor.
    """

    _biases: dict[tuple[object, ...], Tensor] = field(default_factory=dict)

    def bias(self, query: Tensor, *, num_keys: int, window: int) -> Tensor:
        """The bias of the scores of `query` [B, H, Sq, D], whose last token is that of the last key.

        [Sq, num_keys] in the dtype of `query`. Compiled code, which keeps none, makes its own.
        """
        num_queries, device = query.shape[2], query.device
        key = num_queries, num_keys, window, device, query.dtype
        if torch.compiler.is_compiling():
            return _bias(*key)
        if key not in self._biases:
            self._biases[key] = _bias(*key)
        return self._biases[key]


def _bias(num_queries: int, num_keys: int, window: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """0 where query (row) sees key (column), 0 <= row - column < window in the whole sequence, else -inf."""
    rows = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)
    diagonal = num_keys - num_queries
    hidden = ~rows.tril(diagonal).triu(diagonal + 1 - window)
    zeros = torch.zeros(hidden.shape, dtype=dtype, device=device)
    return zeros.masked_fill_(hidden, -math.inf)
