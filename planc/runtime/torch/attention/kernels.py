"""Attention over one block of keys, with the log-sum-exp by which blocks are merged.

Query is [B, H, Sq, D], key [B, Hkv, Sk, D] and value [B, Hkv, Sk, Dv] with Hkv dividing H. The table
in planc/devices/attention_kernels.py chooses the kernel. tests/gpu/kernels.py compares each with float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from planc.devices.attention_kernels import (
    MATH_ROWS,
    AttentionCall,
    Kernel,
    head_dim_multiple,
    kernel_of,
)
from planc.runtime.torch import private
from planc.vocab import DType

# Plain strings: before 2.13, torch.compile can't compare with members of an enum.
FLASH, EFFICIENT, MATH = (kernel.value for kernel in (Kernel.FLASH, Kernel.EFFICIENT, Kernel.MATH))
LSE_MULTIPLE = 32
"""The memory-efficient backward reads log-sum-exps of this many queries at a time, infinite past the last."""
BIAS_MULTIPLE = 16
"""It reads rows of a bias that start at multiples of this many elements."""


@dataclass(frozen=True, slots=True)
class BlockOutput:
    """One block's contribution: `out` [B, H, Sq, Dv] and `lse` [B, H, Sq], the log-sum-exp of its scores.

    `state` is what CUDA's backward needs from its forward; empty for others.
    """

    out: Tensor
    lse: Tensor
    state: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class BlockGradients:
    """Gradients of one block's query, key and value, shaped like them."""

    query: Tensor
    key: Tensor
    value: Tensor


@dataclass(frozen=True, slots=True)
class _Operands:
    """Query, key and value as a kernel takes them: head dims padded, heads repeated, the bias expanded."""

    kernel: str
    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor | None

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.query, self.key, self.value


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which blocks are summed: float64 stays, everything else is float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def block_kernel(query: Tensor, *, value: Tensor, has_mask: bool, has_softcap: bool = False) -> str:
    """The kernel that computes `query` over blocks of keys whose values are like `value`."""
    return _choice(query, value, has_mask, has_softcap)[0]


def _choice(query: Tensor, value: Tensor, has_mask: bool, has_softcap: bool) -> tuple[str, int]:
    """The kernel, and what its head dims are multiples of."""
    device, dtype = _as_on or query.device.type, str(query.dtype).removeprefix("torch.")
    found: tuple[str, int] = _chosen(device, dtype, query.shape[-1], value.shape[-1], has_mask, has_softcap)
    return found


# torch.compile evaluates it, and does not trace the table.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _chosen(
    device: str, dtype: str, head_dim: int, value_dim: int, has_mask: bool, has_softcap: bool
) -> tuple[str, int]:
    call = AttentionCall(DType(dtype), head_dim, value_dim, has_mask=has_mask, has_softcap=has_softcap)
    kernel = kernel_of(call, device=device)
    return kernel.value, head_dim_multiple(kernel, device=device, dtype=call.dtype)


_as_on = ""


@contextmanager
def as_on(device: str) -> Iterator[None]:
    """Choose kernels as on a device of this kind, for tensors that are fake."""
    global _as_on
    before, _as_on = _as_on, device
    try:
        yield
    finally:
        _as_on = before


def block_forward(
    query: Tensor,
    *,
    key: Tensor,
    value: Tensor,
    causal: bool,
    scale: float,
    bias: Tensor | None = None,
    softcap: float | None = None,
) -> BlockOutput:
    """Attention of `query` over one block, everything visible or (`causal`, Sq = Sk) the lower triangle.

    With a `softcap`, scores are `softcap * tanh(score / softcap)`. `bias` [B or 1, 1, Sq, Sk] or [Sq, Sk] is
    then added to them.
    """
    given = _operands(query, key=key, value=value, bias=bias, softcap=softcap)
    state: Sequence[Tensor] = ()
    if given.kernel == MATH:
        out, lse = _math_forward(given, causal=causal, scale=scale, softcap=softcap)
    elif given.kernel == EFFICIENT:
        out, lse, *state = private.efficient_attention(
            *given.inputs, given.bias, True, 0.0, causal, scale=scale
        )
        lse = lse[:, :, : query.shape[2]]
    elif query.device.type == "cpu":
        out, lse = private.flash_attention_cpu(*given.inputs, 0.0, causal, attn_mask=given.bias, scale=scale)
    else:
        out, lse, *_, seed, offset, _debug_mask = private.flash_attention_cuda(
            *given.inputs, 0.0, causal, False, scale=scale
        )
        state = (seed, offset)
    return BlockOutput(out[..., : value.shape[-1]], lse, tuple(state))


def block_backward(
    grad_out: Tensor,
    *,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    merged: BlockOutput,
    causal: bool,
    scale: float,
    bias: Tensor | None = None,
    softcap: float | None = None,
) -> BlockGradients:
    """Gradients through one block, given the output and log-sum-exp merged over all blocks.

    `bias`, `softcap` and `merged.state` are those of the block's own forward.
    """
    given = _operands(query, key=key, value=value, bias=bias, softcap=softcap)
    more = given.value.shape[-1] - value.shape[-1]
    grad_out, out, lse = _widened(grad_out, more), _widened(merged.out, more), merged.lse
    if given.kernel == MATH:
        gradients = _math_backward(
            grad_out, given, out=out, lse=lse, causal=causal, scale=scale, softcap=softcap
        )
    elif given.kernel == EFFICIENT:
        lse = pad(lse, (0, -lse.shape[2] % LSE_MULTIPLE), value=torch.inf)
        needed = [True, True, True, False]
        gradients = private.efficient_attention_backward(
            grad_out, *given.inputs, given.bias, out, lse, *merged.state, 0.0, needed, causal, scale=scale
        )
    elif query.device.type == "cpu":
        gradients = private.flash_attention_cpu_backward(
            grad_out, *given.inputs, out, lse, 0.0, causal, attn_mask=given.bias, scale=scale
        )
    else:
        # Not packed: all sequences of a batch are equally long.
        lengths = (None, None, query.shape[2], key.shape[2])
        gradients = private.flash_attention_cuda_backward(
            grad_out, *given.inputs, out, lse.contiguous(), *lengths, 0.0, causal, *merged.state, scale=scale
        )
    pairs = zip(gradients[:3], (query, key, value), strict=True)
    return BlockGradients(*(_as_given(gradient, tensor) for gradient, tensor in pairs))


def merge(out: Tensor, lse: Tensor, *, block: BlockOutput) -> tuple[Tensor, Tensor]:
    """The output and log-sum-exp over the keys seen so far and those of `block`, in the dtype of `out`.

    Both outputs are weighted by their share of the sum of exponentials. An `lse` of -inf has seen nothing.
    """
    block_lse = block.lse.to(lse.dtype)
    share = torch.sigmoid(block_lse - lse).unsqueeze(-1)
    return out + share * (block.out.to(out.dtype) - out), torch.logaddexp(lse, block_lse)


def with_sinks(out: Tensor, lse: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
    """The output and log-sum-exp with one more key: its score is the head's sink, and its value is 0."""
    sinks = sinks.to(lse.dtype)[:, None]
    seen = torch.sigmoid(lse - sinks).unsqueeze(-1)
    return (out * seen).to(out.dtype), torch.logaddexp(lse, sinks)


def sinks_gradient(grad_out: Tensor, *, out: Tensor, lse: Tensor, sinks: Tensor) -> Tensor:
    """The gradient of the sinks [H], given the output and log-sum-exp with them."""
    weights = (sinks.to(lse.dtype)[:, None] - lse).exp()
    products = (grad_out.to(lse.dtype) * out).sum(-1)
    return -(weights * products).sum((0, 2)).to(sinks.dtype)


def _operands(
    query: Tensor, *, key: Tensor, value: Tensor, bias: Tensor | None, softcap: float | None
) -> _Operands:
    kernel, multiple = _choice(query, value, bias is not None, softcap is not None)
    if kernel == MATH:
        return _Operands(kernel, query, key, value, bias)
    width, value_width = query.shape[-1], value.shape[-1]
    if kernel == FLASH:
        width = value_width = max(width, value_width)
    query, key = (_widened(one, width + -width % multiple - one.shape[-1]) for one in (query, key))
    value = _widened(value, value_width + -value_width % multiple - value.shape[-1])
    if kernel != FLASH:
        num_groups = query.shape[1] // key.shape[1]
        if num_groups > 1:
            key, value = (one.repeat_interleave(num_groups, 1) for one in (key, value))
        if bias is not None:
            num_keys = bias.shape[-1]
            # A part of a wider one starts its rows anywhere, and a copy of its own does not.
            aligned = _widened(bias.contiguous(), -num_keys % BIAS_MULTIPLE)[..., :num_keys]
            bias = aligned.expand(*query.shape[:3], num_keys)
    return _Operands(kernel, query, key, value, bias)


def _widened(tensor: Tensor, more: int) -> Tensor:
    """Add `more` zeros at the end of the last dimension: no score, output or gradient changes."""
    return pad(tensor, (0, more)) if more else tensor


def _as_given(gradient: Tensor, tensor: Tensor) -> Tensor:
    """The gradient of what was padded and repeated."""
    gradient = gradient[..., : tensor.shape[-1]]
    num_samples, num_heads, *rest = tensor.shape
    if gradient.shape[1] == num_heads:
        return gradient
    return gradient.reshape(num_samples, num_heads, -1, *rest).sum(2)


def _math_forward(
    given: _Operands, *, causal: bool, scale: float, softcap: float | None
) -> tuple[Tensor, Tensor]:
    wide = accumulation_dtype(given.query.dtype)
    key, value = given.key.to(wide), given.value.to(wide)
    tiles = [
        _tile_forward(given, key, value, rows, causal=causal, scale=scale, softcap=softcap)
        for rows in _tiles(given.query)
    ]
    outs, sums = zip(*tiles, strict=True)
    return torch.cat(outs, 2), torch.cat(sums, 2)


def _tile_forward(
    given: _Operands,
    key: Tensor,
    value: Tensor,
    rows: slice,
    *,
    causal: bool,
    scale: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    _, scores = _scores(given, key, rows, causal=causal, scale=scale, softcap=softcap)
    lse = scores.logsumexp(-1, keepdim=True)
    out = scores.sub_(lse).exp_() @ value[:, :, : scores.shape[-1]]
    return _by_head(out, given.query).to(given.value.dtype), _by_head(lse, given.query).squeeze(-1)


def _math_backward(
    grad_out: Tensor,
    given: _Operands,
    *,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    wide = accumulation_dtype(given.query.dtype)
    key, value = given.key.to(wide), given.value.to(wide)
    sums = torch.zeros_like(key), torch.zeros_like(value)
    grad_queries = []
    for rows in _tiles(given.query):
        merged = BlockOutput(out[:, :, rows], lse[:, :, rows])
        grad_query = _tile_backward(
            *(grad_out[:, :, rows], given, key, value, rows, merged, sums),
            causal=causal,
            scale=scale,
            softcap=softcap,
        )
        grad_queries.append(grad_query)
    grad_key, grad_value = sums
    return torch.cat(grad_queries, 2), grad_key.to(given.key.dtype), grad_value.to(given.value.dtype)


def _tile_backward(
    grad_out: Tensor,
    given: _Operands,
    key: Tensor,
    value: Tensor,
    rows: slice,
    merged: BlockOutput,
    sums: tuple[Tensor, Tensor],
    *,
    causal: bool,
    scale: float,
    softcap: float | None,
) -> Tensor:
    """The gradient of a tile's queries; those of keys and values are added to `sums`."""
    query, weights = _scores(given, key, rows, causal=causal, scale=scale, softcap=softcap)
    # Before the weights overwrite them. A hidden score is -inf, and its weight 0.
    slope = None if softcap is None else (weights / softcap).square_().neg_().add_(1).clamp_(0)
    weights.sub_(_by_group(merged.lse.unsqueeze(-1), key)).exp_()
    grad, out = (_by_group(tensor.to(key.dtype), key) for tensor in (grad_out, merged.out))
    grad_key, grad_value = (total[:, :, : weights.shape[-1]] for total in sums)
    grad_value += weights.mT @ grad
    grad_scores = grad @ value[:, :, : weights.shape[-1]].mT
    grad_scores.sub_((grad * out).sum(-1, keepdim=True)).mul_(weights)
    if slope is not None:
        grad_scores.mul_(slope)
    # The queries are scaled already.
    grad_key += grad_scores.mT @ query
    grad_query = (grad_scores @ key[:, :, : weights.shape[-1]]).mul_(scale)
    return _by_head(grad_query, given.query).to(given.query.dtype)


def _tiles(query: Tensor) -> Iterator[slice]:
    """Yield `MATH_ROWS` queries at a time."""
    num_queries = query.shape[2]
    for start in range(0, num_queries, MATH_ROWS):
        yield slice(start, min(start + MATH_ROWS, num_queries))


def _scores(
    given: _Operands, key: Tensor, rows: slice, *, causal: bool, scale: float, softcap: float | None
) -> tuple[Tensor, Tensor]:
    """Some queries of all heads that share keys, scaled, and their scores up to the last key they may see.

    [B, Hkv, G x rows, D] and [B, Hkv, G x rows, Sk]: the caller may overwrite them.
    """
    keys = slice(0, rows.stop if causal else key.shape[2])
    query = _by_group(given.query[:, :, rows].to(key.dtype) * scale, key)
    scores = query @ key[:, :, keys].mT
    if softcap is not None:
        scores.div_(softcap).tanh_().mul_(softcap)
    by_row = scores.view(*key.shape[:2], -1, rows.stop - rows.start, scores.shape[-1])
    if causal:
        hidden = torch.ones(by_row.shape[-2:], dtype=torch.bool, device=scores.device).triu(rows.start + 1)
        by_row.masked_fill_(hidden, -torch.inf)
    if given.bias is not None:
        bias = given.bias[..., rows, keys]
        by_row.add_(bias.unsqueeze(1) if bias.dim() == 4 else bias)
    return query, scores


def _by_group(tensor: Tensor, key: Tensor) -> Tensor:
    """[B, H, rows, D] with the heads that share a key's one after the other, [B, Hkv, G x rows, D]."""
    return tensor.reshape(*key.shape[:2], -1, tensor.shape[-1])


def _by_head(tensor: Tensor, query: Tensor) -> Tensor:
    """The inverse of `_by_group`."""
    return tensor.reshape(*query.shape[:2], -1, tensor.shape[-1])
