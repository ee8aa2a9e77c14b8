"""Attention by a kernel for each block of keys, merged by their log-sum-exps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from planc.runtime.torch.attention import kernels


def lower_right_attention(
    query: Tensor,
    *,
    key: Tensor,
    value: Tensor,
    scale: float,
    bias: Tensor | None = None,
    window: int | None = None,
    sinks: Tensor | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Causal attention with the last query at the last key, [B, H, Sq, Dv].

    Queries see all keys before the first query's, by a kernel without a mask, and those since then up to
    their own, by a causal one: no kernel needs a lower-right mask. A `bias` of the scores, [Sq, Sk] or
    [B, 1, Sq, Sk], hides more, and must hide later keys too. With a `window`, the bias is that of any rows of
    queries that follow each other, `Windows.tile`: so many are computed at a time, over the keys that their
    windows hold. `sinks` [H] score one more key, whose value is 0; `softcap` caps the scores of the others.
    What is kept for backward is the query, key and value as they are given, the bias, the output and its
    log-sum-exp.
    """
    given = (bias, sinks, scale, window, softcap, True)
    out: Tensor = BlockAttention.apply(query, key, value, *given)  # type: ignore[no-untyped-call]
    return out


def whole_attention(query: Tensor, *, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Attention of all queries over all keys, [B, H, Sq, Dv], which keeps what causal attention does."""
    given = (None, None, scale, None, None, False)
    out: Tensor = BlockAttention.apply(query, key, value, *given)  # type: ignore[no-untyped-call]
    return out


_NO_GRADIENTS = (None, None, None, None)
"""The gradients of the arguments that are not tensors."""


class BlockAttention(torch.autograd.Function):
    """Attention over one or two blocks of keys, of all queries or, with a window, of some at a time."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        sinks: Tensor | None,
        scale: float,
        window: int | None,
        softcap: float | None,
        is_causal: bool,
    ) -> Tensor:
        results = [
            kernels.block_forward(
                query[:, :, rows],
                key=key[:, :, keys],
                value=value[:, :, keys],
                causal=causal,
                scale=scale,
                bias=tile_bias,
                softcap=softcap,
            )
            for rows, keys, causal, tile_bias in _blocks(query, key, bias, window, is_causal)
        ]
        out, lse = results[0].out, results[0].lse
        if window is not None:
            # Token after token, as a kernel returns it: the layer reads it in place, and keeps no copy.
            out = torch.cat([result.out.transpose(1, 2) for result in results], 1).transpose(1, 2)
            lse = torch.cat([result.lse for result in results], 2)
        elif len(results) > 1:
            dtype = kernels.accumulation_dtype(query.dtype)
            out, lse = out.to(dtype), lse.to(dtype)
            for result in results[1:]:
                out, lse = kernels.merge(out, lse, block=result)
        if sinks is not None:
            out, lse = kernels.with_sinks(out, lse, sinks)
        if out.dtype != query.dtype:
            # A cast that changes nothing has no gradient when PyTorch 2.11 compiles it.
            out = out.to(query.dtype)
        states = [one for result in results for one in result.state]
        ctx.save_for_backward(query, key, value, bias, sinks, out, lse, *states)
        ctx.scale, ctx.window, ctx.softcap, ctx.is_causal = scale, window, softcap, is_causal
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, bias, sinks, out, lse, *states = ctx.saved_tensors
        blocks = _blocks(query, key, bias, ctx.window, ctx.is_causal)
        size = len(states) // len(blocks)
        grad_sinks = (
            None if sinks is None else kernels.sinks_gradient(grad_out, out=out, lse=lse, sinks=sinks)
        )
        sums: list[Tensor] = []
        for index, (rows, keys, causal, tile_bias) in enumerate(blocks):
            gradients = kernels.block_backward(
                grad_out[:, :, rows],
                query=query[:, :, rows],
                key=key[:, :, keys],
                value=value[:, :, keys],
                merged=kernels.BlockOutput(
                    out[:, :, rows], lse[:, :, rows], tuple(states[index * size : (index + 1) * size])
                ),
                causal=causal,
                scale=ctx.scale,
                bias=tile_bias,
                softcap=ctx.softcap,
            )
            if len(blocks) == 1:
                given = (gradients.query, gradients.key, gradients.value)
                return (*given, None, grad_sinks, *_NO_GRADIENTS)
            # One block's at a time: all of them would be gradients of the same keys several times.
            sums = sums or [torch.zeros_like(one) for one in (query, key, value)]
            sums[0][:, :, rows] += gradients.query
            sums[1][:, :, keys] += gradients.key
            sums[2][:, :, keys] += gradients.value
        return (*sums, None, grad_sinks, *_NO_GRADIENTS)


def _blocks(
    query: Tensor, key: Tensor, bias: Tensor | None, window: int | None, is_causal: bool
) -> tuple[tuple[slice, slice, bool, Tensor | None], ...]:
    """The queries and the keys of each kernel, its causality and its bias."""
    num_queries, num_keys = query.shape[2], key.shape[2]
    everything, before = slice(0, num_queries), num_keys - num_queries
    if bias is not None and window is not None:
        return tuple(_tiles(num_queries, before, bias, window))
    if bias is not None or not is_causal:
        return ((everything, slice(0, num_keys), False, bias),)
    since = (everything, slice(before, num_keys), True, None)
    return ((everything, slice(0, before), False, None), since) if before else (since,)


def _tiles(
    num_queries: int, before: int, bias: Tensor, window: int
) -> Iterator[tuple[slice, slice, bool, Tensor | None]]:
    """Yield as many queries at a time as `bias` has rows, with the keys that their windows hold."""
    step = bias.shape[0]
    for start in range(0, num_queries, step):
        stop = min(start + step, num_queries)
        earliest = before + start + 1 - window
        first, end = max(0, earliest), before + stop
        yield (
            slice(start, stop),
            slice(first, end),
            False,
            bias[: stop - start, first - earliest : end - earliest],
        )
