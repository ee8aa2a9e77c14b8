"""Attention masks of sliding windows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from planc.devices.attention_kernels import window_rows
from planc.runtime.torch.attention.blocks import lower_right_attention
from planc.runtime.torch.attention.kernels import MATH, block_kernel


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
        return self._kept(query.shape[2], num_keys, window, query.device, query.dtype)

    def tile(self, query: Tensor, *, rows: int, window: int) -> Tensor:
        """The same of any `rows` queries that follow each other, [rows, rows + window - 1].

        The last query's own key is the last, and the first is the earliest that the first query sees.
        """
        return self._kept(rows, rows + window - 1, window, query.device, query.dtype)

    def _kept(
        self, num_queries: int, num_keys: int, window: int, device: torch.device, dtype: torch.dtype
    ) -> Tensor:
        key = num_queries, num_keys, window, device, dtype
        if torch.compiler.is_compiling():
            return _bias(*key)
        if key not in self._biases:
            self._biases[key] = _bias(*key)
        return self._biases[key]


def window_attention(
    query: Tensor,
    *,
    key: Tensor,
    value: Tensor,
    scale: float,
    window: int,
    windows: Windows,
    sinks: Tensor | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Causal attention with the last query at the last key and a `window`, [B, H, Sq, D].

    A long sequence is computed in tiles of queries, which read only the keys that their windows hold.
    """
    rows = rows_under(window, query=query, value=value, softcap=softcap)
    attend = partial(
        lower_right_attention, query, key=key, value=value, scale=scale, sinks=sinks, softcap=softcap
    )
    if rows is None:
        return attend(bias=windows.bias(query, num_keys=key.shape[2], window=window))
    return attend(bias=windows.tile(query, rows=rows, window=window), window=window)


def rows_under(window: int, *, query: Tensor, value: Tensor, softcap: float | None) -> int | None:
    """The queries that the kernel takes at a time under a window; None if it takes all."""
    kernel = block_kernel(query, value=value, has_mask=True, has_softcap=softcap is not None)
    return window_rows(window, num_queries=query.shape[2], is_math=kernel == MATH)


def _bias(num_queries: int, num_keys: int, window: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """0 where query (row) sees key (column), 0 <= row - column < window in the whole sequence, else -inf."""
    rows = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)
    diagonal = num_keys - num_queries
    hidden = ~rows.tril(diagonal).triu(diagonal + 1 - window)
    zeros = torch.zeros(hidden.shape, dtype=dtype, device=device)
    return zeros.masked_fill_(hidden, -math.inf)
