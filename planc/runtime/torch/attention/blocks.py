"""Causal attention by a kernel for each block of keys, merged by their log-sum-exps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from planc.runtime.torch.attention.kernels import (
    BlockOutput,
    accumulation_dtype,
    block_backward,
    block_forward,
    merge,
    sinks_gradient,
    with_sinks,
)


def lower_right_attention(
    query: Tensor,
    *,
    key: Tensor,
    value: Tensor,
    scale: float,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Causal attention with the last query at the last key, [B, H, Sq, Dv].

    Queries see all keys before the first query's, by a kernel without a mask, and those since then up to
    their own, by a causal one: no kernel needs a lower-right mask. A `bias` of the scores, [Sq, Sk] or
    [B, 1, Sq, Sk], hides more, and must hide later keys too. `sinks` [H] score one more key, whose value is
    0.
    What is kept for backward is the query, key and value as they are given, the bias, the output and its
    log-sum-exp.
    """
    out: Tensor = BlockAttention.apply(query, key, value, bias, sinks, scale)  # type: ignore[no-untyped-call]
    return out


class BlockAttention(torch.autograd.Function):
    """Attention of all queries over one or two blocks of keys."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        sinks: Tensor | None,
        scale: float,
    ) -> Tensor:
        first, *others = results = [
            block_forward(
                query,
                key=key[:, :, start:stop],
                value=value[:, :, start:stop],
                causal=causal,
                scale=scale,
                bias=bias,
            )
            for start, stop, causal in _blocks(query, key, bias)
        ]
        out, lse = first.out, first.lse
        if others:
            dtype = accumulation_dtype(query.dtype)
            out, lse = out.to(dtype), lse.to(dtype)
            for result in others:
                out, lse = merge(out, lse, block=result)
        if sinks is not None:
            out, lse = with_sinks(out, lse, sinks)
        if out.dtype != query.dtype:
            # A cast that changes nothing has no gradient when PyTorch 2.11 compiles it.
            out = out.to(query.dtype)
        states = [one for result in results for one in result.state]
        ctx.save_for_backward(query, key, value, bias, sinks, out, lse, *states)
        ctx.scale = scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, bias, sinks, out, lse, *states = ctx.saved_tensors
        blocks = _blocks(query, key, bias)
        size = len(states) // len(blocks)
        found = [
            block_backward(
                grad_out,
                query=query,
                key=key[:, :, start:stop],
                value=value[:, :, start:stop],
                merged=BlockOutput(out, lse, tuple(states[index * size : (index + 1) * size])),
                causal=causal,
                scale=ctx.scale,
                bias=bias,
            )
            for index, (start, stop, causal) in enumerate(blocks)
        ]
        grad_sinks = None if sinks is None else sinks_gradient(grad_out, out=out, lse=lse, sinks=sinks)
        if len(found) == 1:
            return found[0].query, found[0].key, found[0].value, None, grad_sinks, None
        # The blocks are all keys, in order.
        before, since = found
        grad_key, grad_value = (
            torch.cat((before.key, since.key), 2),
            torch.cat((before.value, since.value), 2),
        )
        return before.query + since.query, grad_key, grad_value, None, grad_sinks, None


def _blocks(query: Tensor, key: Tensor, bias: Tensor | None) -> tuple[tuple[int, int, bool], ...]:
    """First key, end and causality of each block of keys."""
    num_keys = key.shape[2]
    before = num_keys - query.shape[2]
    if bias is not None:
        return ((0, num_keys, False),)
    return ((0, before, False), (before, num_keys, True)) if before else ((0, num_keys, True),)
