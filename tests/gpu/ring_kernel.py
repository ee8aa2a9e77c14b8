"""Ring attention's flash kernel against plain attention: `python -m tests.gpu.ring_kernel DEVICE FILE`.

The kernel returns a log-sum-exp and takes merged blocks back, which the public attention does not, so its
branch for CUDA is private to PyTorch. One device is enough: both blocks of a ring of two are computed here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from planc.runtime.torch.attention.kernels import BlockOutput, flash_backward, flash_forward, merge

BATCH, HEADS, LENGTH, WIDTH = 2, 4, 128, 64
LIMITS = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""Relative to the largest element of the expectation."""


def errors(device: str) -> Iterator[tuple[str, float, float]]:
    """(name, error, limit) of the output and of each gradient of the second block of queries."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    generator = torch.Generator().manual_seed(0)

    def random(length: int) -> Tensor:
        values = torch.randn(BATCH, HEADS, length, WIDTH, generator=generator)
        return values.to(dtype).to(device)

    query, key, value = random(LENGTH), random(2 * LENGTH), random(2 * LENGTH)
    grad_out = random(LENGTH)
    expected = _plain(query, key, value, grad_out)
    found = _ring(query, key, value, grad_out)
    for name, one, other in zip(("out", "query", "key", "value"), found, expected, strict=True):
        error = (one.double().cpu() - other.double()).abs().max() / other.double().abs().max()
        yield name, float(error), LIMITS[dtype]


def _plain(query: Tensor, key: Tensor, value: Tensor, grad_out: Tensor) -> tuple[Tensor, ...]:
    """The output and gradients of attention to all keys up to each query, in float64 on the CPU."""
    inputs = [one.detach().cpu().double().requires_grad_() for one in (query, key, value)]
    mask = torch.ones(LENGTH, 2 * LENGTH, dtype=torch.bool).tril(LENGTH)
    out = scaled_dot_product_attention(*inputs, attn_mask=mask)
    gradients = torch.autograd.grad(out, inputs, grad_out.cpu().double())
    return (out.detach(), *gradients)


def _ring(query: Tensor, key: Tensor, value: Tensor, grad_out: Tensor) -> tuple[Tensor, ...]:
    """The same from two blocks of keys: the first is seen whole, the second up to each query."""
    scale = WIDTH**-0.5
    halves = [
        (one.contiguous(), other.contiguous())
        for one, other in zip(key.chunk(2, 2), value.chunk(2, 2), strict=True)
    ]
    blocks = [
        flash_forward(query, key=one, value=other, causal=is_causal, scale=scale)
        for (one, other), is_causal in zip(halves, (False, True), strict=True)
    ]
    out, lse = merge(blocks[0].out.float(), blocks[0].lse.float(), block=blocks[1])
    gradients = [
        flash_backward(
            grad_out,
            query=query,
            key=one,
            value=other,
            merged=BlockOutput(out.to(query.dtype), lse, block.state),
            causal=is_causal,
            scale=scale,
        )
        for (one, other), block, is_causal in zip(halves, blocks, (False, True), strict=True)
    ]
    keys, values = (torch.cat([getattr(one, name) for one in gradients], 2) for name in ("key", "value"))
    return out, gradients[0].query + gradients[1].query, keys, values


def main(device: str, path: Path) -> int:
    found = [{"name": name, "error": error, "limit": limit} for name, error, limit in errors(device)]
    path.write_text(json.dumps(found), encoding="utf-8")
    return int(any(one["error"] > one["limit"] for one in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
