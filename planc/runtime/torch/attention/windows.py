"""Attention masks of sliding windows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Windows:
    """The masks of the windows that a model's layers have, each computed once.

    All layers share them, and so does what they save for backward: given a mask of booleans,
    scaled_dot_product_attention makes a bias of it in every layer, and saves it.
    """

    _biases: dict[tuple[object, ...], Tensor] = field(default_factory=dict)

    def mask(self, query: Tensor, *, num_keys: int, window: int) -> Tensor:
        """The mask of the scores of `query` [B, H, Sq, D], whose last token is that of the last key.

        [Sq, num_keys]: a bias in the dtype of `query`; in compiled code, which keeps none, booleans.
        """
        num_queries, device = query.shape[2], query.device
        if torch.compiler.is_compiling():
            return _seen(num_queries, num_keys, window=window, device=device)
        key = num_queries, num_keys, window, device, query.dtype
        if key not in self._biases:
            hidden = ~_seen(num_queries, num_keys, window=window, device=device)
            zeros = torch.zeros(hidden.shape, dtype=query.dtype, device=device)
            self._biases[key] = zeros.masked_fill_(hidden, -math.inf)
        return self._biases[key]


def _seen(num_queries: int, num_keys: int, *, window: int, device: torch.device) -> Tensor:
    """True where query (row) sees key (column): 0 <= row - column < window in the whole sequence."""
    rows = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)
    diagonal = num_keys - num_queries
    return rows.tril(diagonal).triu(diagonal + 1 - window)
