"""The positions of a sequence that each rank of the cp mesh dim holds, and whose gradients it needs.

Under "none" rank r holds the r-th of `parts` contiguous chunks. Under "headtail" the sequence is cut into
2 x parts chunks and rank r holds chunks r and 2 x parts - 1 - r, so causal work is equal on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

Balance = Literal["headtail", "none"]


def shard(tensor: Tensor, *, tensor_dim: int, parts: int, index: int, balance: Balance) -> Tensor:
    """The positions of `tensor` along `tensor_dim` that rank `index` of `parts` holds, in its order.

    ValueError if the length is not divisible by `parts` (2 x parts under "headtail").
    """
    length = tensor.shape[tensor_dim]
    num_chunks = 2 * parts if balance == "headtail" else parts
    if length % num_chunks:
        raise ValueError(f"length {length} is not divisible by {num_chunks} ({balance}, cp = {parts})")
    chunks = tensor.chunk(num_chunks, tensor_dim)
    if balance == "none":
        return chunks[index]
    return torch.cat((chunks[index], chunks[num_chunks - 1 - index]), tensor_dim)


def unshard(shards: Sequence[Tensor], *, tensor_dim: int, balance: Balance) -> Tensor:
    """The whole tensor from the shards of all ranks in rank order: the inverse of `shard`.

    ValueError if a shard's length is odd under "headtail".
    """
    if balance == "none":
        return torch.cat(tuple(shards), tensor_dim)
    halves = [local_halves(piece, tensor_dim=tensor_dim) for piece in shards]
    heads = [head for head, _ in halves]
    tails = [tail for _, tail in reversed(halves)]
    return torch.cat((*heads, *tails), tensor_dim)


def local_halves(tensor: Tensor, *, tensor_dim: int) -> tuple[Tensor, Tensor]:
    """The head chunk and the tail chunk of a "headtail" shard; ValueError if its length is odd."""
    length = tensor.shape[tensor_dim]
    if length % 2:
        raise ValueError(f"a headtail shard has two equal chunks, but its length is {length}")
    head, tail = tensor.chunk(2, tensor_dim)
    return head, tail


def local_positions(
    sequence_length: int, *, parts: int, index: int, balance: Balance, device: torch.device | None = None
) -> Tensor:
    """The positions that rank `index` of `parts` holds, int64 [sequence_length / parts].

    ValueError as in `shard`. They are on the CPU without a `device`, and are the rank's `position_ids`.
    """
    return shard(
        torch.arange(sequence_length, device=device), tensor_dim=0, parts=parts, index=index, balance=balance
    )


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
