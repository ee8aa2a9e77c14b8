"""Rows are there when experts read them: a kernel gets an address, and does not ask for a pending message."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from planc.runtime.torch.parallel.experts import Dispatch
from tests.dist.pool import run_ranks

NUM_TOKENS, FEATURES, LATE_SECONDS = 6, 4, 0.5


class Kernel(torch.autograd.Function):
    """Doubles what is at the addresses of its rows and of their gradients."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        return _doubled(rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _doubled(gradient)


def _doubled(tensor: Tensor) -> Tensor:
    address = tensor.data_ptr()
    assert address, "the rows have no address before they have arrived"
    assert tensor.is_contiguous()
    numbers = (ctypes.c_double * tensor.numel()).from_address(address)
    return torch.tensor(list(numbers), dtype=torch.float64).view(tensor.shape) * 2


class Late(Dispatch):
    """A dispatch whose last rank sends its rows some time after all others know of them."""

    def num_rows(self, sent: Tensor, received: Tensor, *, of_all: int) -> Any:
        _wait_on_last()
        return Dispatch.num_rows(self, sent, received, of_all=of_all)


def _wait_on_last() -> None:
    if dist.get_rank() == dist.get_world_size() - 1:
        time.sleep(LATE_SECONDS)


def _dispatched(rank: int, world_size: int) -> Sequence[Tensor]:
    """Tokens, weights, upstream gradients, outputs, and the gradients of tokens and weights."""
    group = dist.group.WORLD
    assert group is not None
    experts = Late(lambda rows, chosen, weights: Kernel.apply(rows), 2 * world_size, group)
    generator = torch.Generator().manual_seed(rank)
    tokens, upstream = torch.randn(2, NUM_TOKENS, FEATURES, generator=generator, dtype=torch.float64)
    weights = torch.rand(NUM_TOKENS, 1, generator=generator, dtype=torch.float64)
    chosen = torch.arange(NUM_TOKENS).view(-1, 1) % (2 * world_size)
    outputs = experts(tokens.requires_grad_(), chosen, weights.requires_grad_())
    _wait_on_last()
    outputs.backward(upstream)
    assert tokens.grad is not None and weights.grad is not None
    found = (tokens, weights, upstream, outputs, tokens.grad, weights.grad)
    return [one.detach() for one in found]


def test_rows_and_gradients_have_arrived_when_a_kernel_reads_them() -> None:
    for tokens, weights, upstream, outputs, of_tokens, of_weights in run_ranks(_dispatched, 2):
        assert torch.equal(outputs, 2 * tokens * weights)
        assert torch.equal(of_tokens, 2 * upstream * weights)
        assert torch.equal(of_weights, (2 * tokens * upstream).sum(1, keepdim=True))
