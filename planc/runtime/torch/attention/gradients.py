"""Queries, keys and values of which frozen projections leave some without a gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def all_with_gradients(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The same tensors, of which all have gradients if one does.

    In a first layer some projections are frozen and read what has no gradient. What backward sends does not
    depend on which: it is the same for every attention that it passes.
    """
    if len({tensor.requires_grad for tensor in tensors}) == 1:
        return tensors
    found: tuple[Tensor, ...] = _Together.apply(*tensors)  # type: ignore[no-untyped-call]
    return found


class _Together(torch.autograd.Function):
    """One function of all tensors, whose outputs have gradients if one of its inputs does."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return gradients
