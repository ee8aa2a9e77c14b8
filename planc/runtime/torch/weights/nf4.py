"""Frozen linear layers whose weights are stored as NF4: 4 bits each, and a float32 scale for each block.

A row is stored block by block: two codes a byte, the first in the high bits, then the four bytes of the
scale, which is the largest magnitude of the block. Blocks are of consecutive inputs, so shards of rows, or of
inputs in whole blocks, have the codes of the whole weight. Codes, their order and their rounding are those of
QLoRA (Dettmers et al. 2023, appendix E) and of bitsandbytes. Forward makes the weight of its codes, and
backward makes it again: between them there are codes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear

from planc.graph.graph import Graph
from planc.graph.ops import BuildModel, QuantizeBase
from planc.runtime.torch.dtypes import TORCH_DTYPES
from planc.runtime.torch.parallel.blocks import Slices
from planc.runtime.torch.run import Run
from planc.runtime.torch.weights.views import View

VALUES = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941),
    *(0.7229568362236023, 1.0),
)
"""The value of each code: quantiles of a normal distribution, with an exact zero."""
_MIDDLES = tuple((low + high) / 2 for low, high in pairwise(VALUES))
_SCALE_BYTES = 4
_PIECE = 2**22
"""Elements that are quantized at a time."""
_FORMAT, _PAIRS = "_planc_nf4", "_planc_nf4_pairs"


@dataclass(frozen=True, slots=True)
class Nf4:
    """The storage of a weight in blocks; `dtype` is that of the weight itself."""

    block: int
    dtype: torch.dtype

    @property
    def block_bytes(self) -> int:
        return self.block // 2 + _SCALE_BYTES

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """The shape in bytes of a weight of this shape."""
        return shape[0], shape[1] // self.block * self.block_bytes

    def shape(self, stored: tuple[int, ...]) -> tuple[int, int]:
        """The shape of a weight whose bytes have this shape."""
        return stored[0], stored[1] // self.block_bytes * self.block

    def view(self, of: View) -> View:
        """The bytes of a weight, by which blocks of them are filled."""
        return View(self.stored_shape(of.shape), self.filling(of.fill), of.sources)

    def filling(self, fill: Callable[[Tensor, Slices], object]) -> Callable[[Tensor, Slices], None]:
        """Fill blocks of a weight's bytes by what fills blocks of the weight, a few rows at a time."""

        def fill_stored(out: Tensor, held: Slices) -> None:
            rows, columns = held[0], self._inputs(held[1])
            width = columns.stop - columns.start
            step = max(1, _PIECE // max(1, width))
            for start in range(rows.start, rows.stop, step):
                stop = min(start + step, rows.stop)
                values = torch.empty((stop - start, width), dtype=self.dtype, device=out.device)
                fill(values, (slice(start, stop), columns))
                out[start - rows.start : stop - rows.start].copy_(quantized(values, block=self.block))

        return fill_stored

    def _inputs(self, stored: slice) -> slice:
        """The inputs of a row that some of its bytes hold."""
        return slice(*(end // self.block_bytes * self.block for end in (stored.start, stored.stop)))

    def read(self, fill_stored: Callable[[Tensor, Slices], object], held: Slices) -> Tensor:
        """A block of the weight as training computes with it, by what fills blocks of its bytes."""
        rows, columns = held
        first, last = columns.start // self.block, -(-columns.stop // self.block)
        stored = torch.empty((rows.stop - rows.start, (last - first) * self.block_bytes), dtype=torch.uint8)
        fill_stored(stored, (rows, slice(first * self.block_bytes, last * self.block_bytes)))
        begin = columns.start - first * self.block
        return self.weight(stored)[:, begin : begin + columns.stop - columns.start]

    def weight(self, stored: Tensor) -> Tensor:
        """The weight that bytes hold."""
        return dequantized(stored, _pairs().to(stored.device), block=self.block, dtype=self.dtype)


def nf4_formats(graph: Graph) -> Mapping[str, Nf4]:
    """The storage of each weight that a graph quantizes, by name."""
    build = next(op for op in graph.setup if isinstance(op, BuildModel))
    others = build.other_dtypes
    return {
        name: Nf4(op.block, TORCH_DTYPES[others.get(name, build.dtype)])
        for op in graph.setup
        if isinstance(op, QuantizeBase)
        for name in op.parameters
    }


def quantize_base(run: Run, op: QuantizeBase, model: nn.Module) -> None:
    """Give the op's layers weights of bytes, on meta, and a forward that computes with what they hold."""
    for fqn in op.modules:
        layer: Any = model.get_submodule(fqn)
        assert type(layer) is nn.Linear, f"{fqn} is PyTorch's own linear layer"
        nf4 = Nf4(op.block, layer.weight.dtype)
        stored = torch.empty(nf4.stored_shape(layer.weight.shape), dtype=torch.uint8, device="meta")
        layer.weight = nn.Parameter(stored, requires_grad=False)
        # Neither is a buffer: a state of the model, or something that a shard divides.
        vars(layer).update({_FORMAT: nf4, _PAIRS: _pairs()})
        layer.__class__ = _Nf4Linear


class _Nf4Linear(nn.Linear):
    """A linear layer that computes with the weight that its bytes hold, in the dtype of its input."""

    def forward(self, input: Tensor) -> Tensor:
        nf4: Nf4 = getattr(self, _FORMAT)
        pairs: Tensor = getattr(self, _PAIRS).to(input.device, non_blocking=True)
        product: Tensor = _Product.apply(input, self.weight, pairs, nf4.block)  # type: ignore[no-untyped-call]
        return product if self.bias is None else product + self.bias


def computed_weight(layer: nn.Module, stored: Tensor, *, dtype: torch.dtype) -> Tensor:
    """The weight that a layer computes with, in the dtype of its input: it may be stored in blocks."""
    if not isinstance(layer, _Nf4Linear):
        return stored
    nf4: Nf4 = getattr(layer, _FORMAT)
    pairs: Tensor = getattr(layer, _PAIRS).to(stored.device, non_blocking=True)
    return dequantized(stored, pairs, block=nf4.block, dtype=dtype)


class _Product(torch.autograd.Function):
    """`x @ weight.T`, which keeps the weight's bytes for backward, and neither the weight nor x."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, stored: Tensor, pairs: Tensor, block: int) -> Tensor:
        ctx.save_for_backward(stored, pairs)
        ctx.block = block
        return linear(input, dequantized(stored, pairs, block=block, dtype=input.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        stored, pairs = ctx.saved_tensors
        (gradient,) = gradients
        return (
            gradient @ dequantized(stored, pairs, block=ctx.block, dtype=gradient.dtype),
            None,
            None,
            None,
        )


def quantized(weight: Tensor, *, block: int) -> Tensor:
    """The bytes of a weight [rows, inputs]."""
    blocks = torch.unflatten(weight.float(), 1, (-1, block))
    scales = blocks.abs().amax(2, keepdim=True)
    middles = torch.tensor(_MIDDLES, device=weight.device)
    # A block of zeros has the scale 0, and codes of zero.
    shares = blocks / scales.where(scales > 0, 1.0)
    codes = torch.bucketize(shares, middles, out_int32=True).to(torch.uint8)
    pairs = codes[..., 0::2] * 16 + codes[..., 1::2]
    return torch.cat((pairs, scales.view(torch.uint8)), dim=2).flatten(1)


def dequantized(stored: Tensor, pairs: Tensor, *, block: int, dtype: torch.dtype) -> Tensor:
    """The weight [rows, inputs] of its bytes, in float32 until it is whole; `pairs` are two values a byte."""
    blocks = torch.unflatten(stored, 1, (-1, block // 2 + _SCALE_BYTES))
    scales = blocks[..., block // 2 :].contiguous().view(torch.float32)
    values = embedding(blocks[..., : block // 2].int(), pairs).flatten(2)
    return values.mul_(scales).flatten(1).to(dtype)


def _pairs() -> Tensor:
    """The two values of each byte: [256, 2]."""
    values = torch.tensor(VALUES)
    return torch.stack((values.repeat_interleave(16), values.repeat(16)), dim=1)
