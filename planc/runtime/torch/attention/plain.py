"""Attention within one rank: causal, and to all tokens."""

from __future__ import annotations

import functools
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

from planc.runtime.torch import private
from planc.runtime.torch.attention.blocks import lower_right_attention, whole_attention
from planc.runtime.torch.attention.documents import Documents, apart
from planc.runtime.torch.attention.kernels import FLASH, block_kernel
from planc.runtime.torch.attention.windows import Windows, rows_under, window_attention


def plain_attention(
    query: Tensor,
    *,
    key: Tensor,
    value: Tensor,
    scale: float,
    windows: Windows,
    window: int | None = None,
    documents: Documents | None = None,
    sinks: Tensor | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Causal attention of `query` [B, H, S, D] over `key` and `value` [B, Hkv, S, D], as [B, H, S, D].

    With a `window` a position sees itself and the window - 1 positions before it, as in transformers;
    with `documents`, only its own document. `sinks` [H] score one more key, whose value is 0. With a
    `softcap`, the scores of the others are `softcap * tanh(score / softcap)`.
    """
    options: dict[str, Any] = {"sinks": sinks, "softcap": softcap}
    if documents is not None and not torch.compiler.is_compiling():
        # Masks of documents of all lengths would fill the memory if they were kept.
        attend = partial(plain_attention, scale=scale, windows=Windows(), window=window, **options)
        return apart(query, key=key, value=value, documents=documents, attend=attend)
    length = query.shape[2]
    if window is not None and window >= length:
        window = None
    if window is None and documents is None:
        return _causal(query, key=key, value=value, scale=scale, **options)
    if documents is None:
        assert window is not None, "else nothing would be masked"
        if rows_under(window, query=query, value=value, softcap=softcap) is not None:
            return window_attention(
                query, key=key, value=value, scale=scale, window=window, windows=windows, **options
            )
        bias = windows.bias(query, num_keys=length, window=window)
    else:
        # A compiled graph is the same for all documents: they are in the values of a mask alone.
        places = torch.arange(length, device=query.device)
        bias = documents.bias(queries=places, keys=places, dtype=query.dtype, window=window)
    return _unscored(query, key=key, value=value, scale=scale, bias=bias, **options)


def bidirectional_attention(
    query: Tensor,
    *,
    key: Tensor,
    value: Tensor,
    scale: float,
    window: int | None = None,
    documents: Documents | None = None,
    sinks: Tensor | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Attention of `query` [B, H, S, D] over all of `key` and `value` [B, Hkv, S, D], as [B, H, S, D].

    With `documents`, a position sees its own document only. ValueError for a window, since whether it counts
    a token itself differs from model to model, and for sinks and a soft cap.
    """
    if window is not None or sinks is not None or softcap is not None:
        raise ValueError("bidirectional attention with a window, sinks or a soft cap is not supported")
    if documents is not None:
        attend = partial(bidirectional_attention, scale=scale)
        return apart(query, key=key, value=value, documents=documents, attend=attend)
    if block_kernel(query, value=value, has_mask=False) == FLASH:
        return _dispatched(query, key, value, scale=scale, is_causal=False)
    return whole_attention(query, key=key, value=value, scale=scale)


def encoder_decoder_attention(
    query: Tensor,
    *,
    key: Tensor,
    value: Tensor,
    scale: float,
    windows: Windows,
    is_causal: bool,
    window: int | None = None,
    documents: Documents | None = None,
    sinks: Tensor | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Causal attention over a target, or attention of all queries over an input, as [B, H, Sq, D].

    `documents` are the inputs: an input is the first of its sequence, and padding the other. ValueError as
    for `bidirectional_attention`.
    """
    options: dict[str, Any] = {"scale": scale, "window": window, "sinks": sinks, "softcap": softcap}
    if is_causal:
        return plain_attention(query, key=key, value=value, windows=windows, **options)
    if documents is None:
        return bidirectional_attention(query, key=key, value=value, **options)
    # Queries of padding see the input too: nothing reads what becomes of them.
    samples = []
    for sample, (first, *_) in enumerate(documents.spans()):
        own, keys = slice(sample, sample + 1), slice(*first)
        samples.append(
            bidirectional_attention(query[own], key=key[own, :, keys], value=value[own, :, keys], **options)
        )
    return torch.cat(samples) if len(samples) > 1 else samples[0]


def _unscored(
    query: Tensor,
    *,
    key: Tensor,
    value: Tensor,
    scale: float,
    bias: Tensor | None,
    sinks: Tensor | None,
    softcap: float | None,
) -> Tensor:
    """Attend by a kernel that keeps no scores, where PyTorch's own dispatch might."""
    if sinks is None and softcap is None and prefers_cudnn(query, value=value, has_mask=bias is not None):
        return _cudnn_attention(query, key=key, value=value, scale=scale, bias=bias)
    return lower_right_attention(
        query, key=key, value=value, scale=scale, bias=bias, sinks=sinks, softcap=softcap
    )


def _causal(
    query: Tensor,
    *,
    key: Tensor,
    value: Tensor,
    scale: float,
    sinks: Tensor | None,
    softcap: float | None,
) -> Tensor:
    """Without a mask: by PyTorch's own dispatch where it takes a flash kernel, else by the table's kernel.

    PyTorch's own returns no log-sum-exp, by which sinks are added.
    """
    kernel = block_kernel(query, value=value, has_mask=False, has_softcap=softcap is not None)
    if sinks is not None or kernel != FLASH:
        return _unscored(query, key=key, value=value, scale=scale, bias=None, sinks=sinks, softcap=softcap)
    return _dispatched(query, key, value, scale=scale, is_causal=True)


def _dispatched(query: Tensor, key: Tensor, value: Tensor, *, scale: float, is_causal: bool) -> Tensor:
    width, more = value.shape[-1], query.shape[-1] - value.shape[-1]
    if more > 0:
        value = pad(value, (0, more))
    out = scaled_dot_product_attention(
        query, key, value, is_causal=is_causal, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
    )
    return out[..., :width]


_LENGTH = 128


def prefers_cudnn(query: Tensor, *, value: Tensor, has_mask: bool) -> bool:
    """Whether PyTorch takes cuDNN's kernel for heads that are not grouped. Compiled code never asks.

    It and the memory-efficient kernel keep the same for backward. On an H200 cuDNN's took 0.30 ms for a layer
    of DeepSeek-V3 with 2,048 tokens, forward and backward, and the memory-efficient kernel 2.58 ms.
    """
    if query.device.type == "cpu" or torch.compiler.is_compiling():
        return False
    dims = query.shape[-1], value.shape[-1]
    return query.shape[1] == value.shape[1] and _choice(query.device, query.dtype, *dims, has_mask)


@functools.cache
def _choice(device: torch.device, dtype: torch.dtype, head_dim: int, value_dim: int, has_mask: bool) -> bool:
    query, key, value = (
        torch.zeros(1, 1, _LENGTH, dim, dtype=dtype, device=device, requires_grad=True)
        for dim in (head_dim, head_dim, value_dim)
    )
    bias = torch.zeros(_LENGTH, _LENGTH, dtype=dtype, device=device) if has_mask else None
    chosen: int = private.fused_sdp_choice(query, key, value, bias, 0.0, not has_mask)
    return chosen == SDPBackend.CUDNN_ATTENTION.value


def _cudnn_attention(
    query: Tensor, *, key: Tensor, value: Tensor, scale: float, bias: Tensor | None
) -> Tensor:
    """Causal attention by cuDNN's kernel, or by the bias of the scores. RuntimeError if it can't."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return scaled_dot_product_attention(
            query, key, value, attn_mask=bias, is_causal=bias is None, scale=scale
        )
