"""Flash attention over one block of keys, with the log-sum-exp by which blocks are merged.

Query is [B, H, Sq, D], key and value [B, Hkv, Sk, D] with Hkv dividing H. CUDA branches are unverified.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from planc.runtime.torch import private

CUDA_HEAD_DIM_MULTIPLE = 8
"""The raw CUDA kernel supports only multiples of this head dim; the public op pads."""


@dataclass(frozen=True, slots=True)
class BlockOutput:
    """What one block contributes: `out` [B, H, Sq, D] and `lse` [B, H, Sq], the log-sum-exp of its scores.

    `state` is what the CUDA backward needs from its forward; empty on the CPU.
    """

    out: Tensor
    lse: Tensor
    state: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class BlockGradients:
    """Gradients of one block's query, key and value, shaped like them."""

    query: Tensor
    key: Tensor
    value: Tensor


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which blocks are summed: float64 stays, everything else is float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def require_flash(query: Tensor, *, isolates: bool = False) -> None:
    """ValueError unless this device has a flash kernel for the dtype and head dim of `query`.

    With `isolates` the kernel must support a mask too.
    """
    if query.device.type == "cpu":
        return
    if isolates:
        raise ValueError("ring attention isolates documents on the CPU only: use allgather or ulysses")
    if query.device.type != "cuda":
        raise ValueError(f"ring attention has no kernel for device {query.device.type}, only cpu and cuda")
    if query.dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"ring attention on cuda needs bfloat16 or float16, not {query.dtype}")
    if query.shape[-1] % CUDA_HEAD_DIM_MULTIPLE:
        raise ValueError(
            f"ring attention on cuda needs a head_dim divisible by {CUDA_HEAD_DIM_MULTIPLE}, "
            f"not {query.shape[-1]}"
        )


def flash_forward(
    query: Tensor, *, key: Tensor, value: Tensor, causal: bool, scale: float, bias: Tensor | None = None
) -> BlockOutput:
    """Attention of `query` over one block, everything visible or (`causal`, Sq = Sk) the lower triangle.

    `bias` [B, 1, Sq, Sk] is added to the scores; only the CPU's kernel takes one.
    """
    if query.device.type == "cpu":
        out, lse = private.flash_attention_cpu(query, key, value, 0.0, causal, attn_mask=bias, scale=scale)
        return BlockOutput(out, lse, ())
    assert bias is None, "require_flash rejects it"
    out, lse, *state, _debug_mask = private.flash_attention_cuda(
        query, key, value, 0.0, causal, False, scale=scale
    )
    return BlockOutput(out, lse, tuple(state))


def flash_backward(
    grad_out: Tensor,
    *,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    merged: BlockOutput,
    causal: bool,
    scale: float,
    bias: Tensor | None = None,
) -> BlockGradients:
    """Gradients through one block, given the output and log-sum-exp merged over all blocks.

    `bias` and `merged.state` are those of the block's own forward. All other tensors must be contiguous.
    """
    inputs = (grad_out, query, key, value, merged.out, merged.lse)
    if query.device.type == "cpu":
        return BlockGradients(
            *private.flash_attention_cpu_backward(*inputs, 0.0, causal, attn_mask=bias, scale=scale)
        )
    *sequence, philox_seed, philox_offset = merged.state
    gradients = private.flash_attention_cuda_backward(
        *inputs, *sequence, 0.0, causal, philox_seed, philox_offset, scale=scale
    )
    return BlockGradients(*gradients[:3])


def merge(out: Tensor, lse: Tensor, *, block: BlockOutput) -> tuple[Tensor, Tensor]:
    """The output and log-sum-exp over the keys seen so far and those of `block`, in the dtype of `out`.

    Both outputs are weighted by their share of the sum of exponentials. An `lse` of -inf has seen nothing.
    """
    block_lse = block.lse.to(lse.dtype)
    share = torch.sigmoid(block_lse - lse).unsqueeze(-1)
    return out + share * (block.out.to(out.dtype) - out), torch.logaddexp(lse, block_lse)
