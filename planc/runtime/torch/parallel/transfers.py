"""Transfers at the edges of modules over tp, on local tensors, and the transpose of each.

Ranks chunk a dimension as DTensor does: the first ones hold `ceil(length / ranks)` elements, the last may
hold fewer. Collectives need equal chunks, so short ones are padded on their way.

torch.compile traces what is called while a model runs. What an edge does is settled before, in words that it
can trace.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, assert_never

import torch
import torch.nn.functional as functional
from torch import Tensor
from torch.distributed import ProcessGroup

from planc.runtime.torch import private
from planc.styles.edges import Edge, Transfer, transfer
from planc.vocab import Placement, Shard, local_length


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks that values are shared by, as this rank sees them."""

    group: str
    size: int
    rank: int

    def chunk(self, length: int) -> int:
        """The most elements that a rank holds of a dimension."""
        return -(-length // self.size)

    def start(self, length: int) -> int:
        """Return the first index of this rank's chunk of a dimension."""
        return min(self.chunk(length) * self.rank, length)

    def own(self, length: int) -> int:
        """The elements that this rank holds of a dimension."""
        return local_length(length, parts=self.size, index=self.rank)


@dataclass(frozen=True, slots=True)
class Move:
    """A transfer, and the dimensions of the value that are sharded: before it, or else after it; after it."""

    transfer: Transfer
    dim: int = 0
    to: int = 0


def ranks_of(group: ProcessGroup) -> Ranks:
    return Ranks(group.group_name, group.size(), group.rank())


def move_of(arriving: Placement, leaving: Placement) -> Move:
    """Return the move that takes a value from one placement to another."""
    dims = [one.tensor_dim for one in (arriving, leaving) if isinstance(one, Shard)]
    return Move(transfer(arriving, leaving), *((dims[0], dims[-1]) if dims else ()))


@dataclass(frozen=True, slots=True)
class Crossing:
    """A function that moves a value over an edge, and its gradient back.

    `length` is the value's whole size along the dimension that it arrives sharded on, if ranks may hold
    chunks of different sizes.
    """

    there: Move
    back: Move
    ranks: Ranks
    length: int | None = None

    def __call__(self, value: Tensor) -> Tensor:
        there = self.there
        if there.transfer in (Transfer.ALL_GATHER, Transfer.PAD, Transfer.ALL_TO_ALL):
            length = value.size(there.dim) * self.ranks.size if self.length is None else self.length
        else:
            length = value.size(there.dim)
        to_length = value.size(there.to)
        crossed: Tensor = _Crossing.apply(  # type: ignore[no-untyped-call]
            value, there, self.back, self.ranks, length, to_length
        )
        return crossed


def crossing(edge: Edge, ranks: Ranks, *, length: int | None = None) -> Crossing:
    """The crossing of an edge."""
    return Crossing(
        move_of(edge.arriving.value, edge.leaving.value),
        move_of(edge.leaving.gradient, edge.arriving.gradient),
        ranks,
        length,
    )


class _Crossing(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, value: Tensor, there: Move, back: Move, ranks: Ranks, length: int, to_length: int
    ) -> Tensor:
        ctx.back, ctx.ranks, ctx.lengths = back, ranks, (length, to_length)
        if there.transfer is Transfer.KEEP:
            # What autograd returns unchanged must be another tensor object than the input.
            return value.view_as(value)
        # A view of this could not be written into, as the model's code may.
        return _moved(value, there, ranks, length, to_length)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        (gradient,) = gradients
        length, to_length = ctx.lengths
        if ctx.back.transfer is Transfer.ALL_TO_ALL:
            # It arrives sharded where the value left.
            length, to_length = to_length, length
        if ctx.back.transfer is not Transfer.KEEP:
            gradient = _moved(gradient, ctx.back, ctx.ranks, length, to_length)
        return gradient, None, None, None, None, None


def _moved(value: Tensor, move: Move, ranks: Ranks, length: int, to_length: int) -> Tensor:
    """The value after a transfer. The lengths are those of the whole value along the move's dimensions."""
    dim = move.dim
    match move.transfer:
        case Transfer.KEEP:
            return value
        case Transfer.SPLIT:
            return value.narrow_copy(dim, ranks.start(length), ranks.own(length))
        case Transfer.PAD:
            start = ranks.start(length)
            return _padded(value, dim, before=start, after=length - start - value.size(dim))
        case Transfer.ALL_REDUCE:
            return _wait(private.all_reduce(value.contiguous(), "sum", ranks.group))
        case Transfer.ALL_GATHER:
            return _all_gather(value, dim, ranks, length)
        case Transfer.REDUCE_SCATTER:
            return _reduce_scatter(value, dim, ranks, length)
        case Transfer.ALL_TO_ALL:
            return _all_to_all(value, move, ranks, length, to_length)
        case unknown:
            assert_never(unknown)


def _all_gather(value: Tensor, dim: int, ranks: Ranks, length: int) -> Tensor:
    value = _padded(value, dim, after=ranks.chunk(length) - value.size(dim))
    # Along the first dimension: before 2.13, torch.compile can't trace how PyTorch puts others together.
    gathered = _wait(private.all_gather(value.contiguous(), gather_dim=0, group=ranks.group))
    before, after = value.shape[: dim % value.ndim], value.shape[dim % value.ndim + 1 :]
    if math.prod(before) == 1:
        whole = gathered.view(*before, -1, *after)
    else:
        whole = torch.cat(gathered.chunk(ranks.size), dim)
    return _cut(whole, dim, length)


def _reduce_scatter(value: Tensor, dim: int, ranks: Ranks, length: int) -> Tensor:
    value = _padded(value, dim, after=ranks.chunk(length) * ranks.size - length)
    scattered = private.reduce_scatter(
        value.contiguous(), "sum", scatter_dim=dim % value.ndim, group=ranks.group
    )
    return _cut(_wait(scattered), dim, ranks.own(length))


def _all_to_all(value: Tensor, move: Move, ranks: Ranks, length: int, to_length: int) -> Tensor:
    value = _padded(value, move.dim, after=ranks.chunk(length) - value.size(move.dim))
    value = _padded(value, move.to, after=ranks.chunk(to_length) * ranks.size - to_length)
    sent = torch.stack(torch.split(value, ranks.chunk(to_length), dim=move.to))
    received = _wait(private.all_to_all(sent, None, None, ranks.group))
    whole = torch.cat(received.unbind(), dim=move.dim)
    return _cut(_cut(whole, move.dim, length), move.to, ranks.own(to_length))


def _wait(value: Tensor) -> Tensor:
    """A collective's result, once it is there: an asynchronous tensor waits at its first use."""
    waited: Tensor = private.wait_tensor(value)
    return waited


def _padded(value: Tensor, dim: int, *, before: int = 0, after: int = 0) -> Tensor:
    if before == after == 0:
        return value
    later = value.ndim - 1 - dim % value.ndim
    return functional.pad(value, (*(0, 0) * later, before, after))


def _cut(value: Tensor, dim: int, length: int) -> Tensor:
    return value if value.size(dim) == length else value.narrow_copy(dim, 0, length)
