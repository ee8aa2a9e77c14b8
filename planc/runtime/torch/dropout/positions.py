"""Positions of the elements of a rank's part of a tensor in one device's tensor of the whole step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

import torch
from torch import Tensor

from planc.graph.ops import Draw
from planc.runtime.torch.parallel.transfers import Ranks
from planc.vocab import DropoutDim, Replicate, Shard

ALONE = Ranks("", 1, 0)


@dataclass(slots=True)
class Tokens:
    """The samples of the step and the positions in their sequences that a rank holds; both int64."""

    samples: Tensor
    """[B]: their numbers within the step."""
    positions: Tensor
    """[S]: the same in every sample."""
    sequence_length: int
    """The length of the whole sequence."""


@dataclass(frozen=True, slots=True)
class Places:
    """The global positions of a tensor's elements. Samples and rows broadcast to all dims but the last.

    The rows of a sample's tensor are numbered in row-major order, with global lengths.
    """

    samples: Tensor
    rows: Tensor
    columns: Tensor


def places_of(shape: torch.Size, draw: Draw, *, tokens: Tokens, ranks: Ranks) -> Places:
    """The places of a tensor of this shape; ValueError if the draw's layout gives another shape."""
    sharded = _sharded_dim(draw)
    device = tokens.samples.device
    samples = rows = columns = torch.zeros((), dtype=torch.int64, device=device)
    if len(shape) != len(draw.dims):
        raise ValueError(_another(shape, draw))
    last = len(shape) - 1
    for tensor_dim, dim in enumerate(draw.dims):
        share = ranks if tensor_dim == sharded else ALONE
        along, length, of_samples = _along(dim, tokens, share)
        if along.shape[0] != shape[tensor_dim]:
            raise ValueError(_another(shape, draw))
        if tensor_dim == last:
            columns = along
            continue
        spread = (-1, *(1,) * (last - 1 - tensor_dim))
        if of_samples is not None:
            samples = samples + of_samples.reshape(spread)
        if dim is not DropoutDim.BATCH:
            rows = rows * length + along.reshape(spread)
    return Places(samples, rows, columns)


def _along(dim: DropoutDim | int, tokens: Tokens, share: Ranks) -> tuple[Tensor, int, Tensor | None]:
    """A dimension's global positions on this rank, its whole length, and the samples that it counts."""
    match dim:
        case DropoutDim.BATCH:
            samples = _chunk(tokens.samples, share)
            return samples, 1, samples
        case DropoutDim.SEQUENCE:
            return _chunk(tokens.positions, share), tokens.sequence_length, None
        case DropoutDim.TOKENS:
            positions = _chunk(tokens.positions, share)
            samples = tokens.samples.repeat_interleave(positions.shape[0])
            return positions.repeat(tokens.samples.shape[0]), tokens.sequence_length, samples
        case int():
            start = share.start(dim)
            whole = torch.arange(start, start + share.own(dim), device=tokens.samples.device)
            return whole, dim, None
        case _:
            assert_never(dim)


def _chunk(values: Tensor, share: Ranks) -> Tensor:
    """A rank's chunk of [length]."""
    start = share.start(values.shape[0])
    return values[start : start + share.own(values.shape[0])]


def _sharded_dim(draw: Draw) -> int | None:
    match draw.layout:
        case Shard(tensor_dim):
            return tensor_dim
        case Replicate():
            return None
        case _:
            raise AssertionError(f"no tensor of dropout is {draw.layout}")


def _another(shape: torch.Size, draw: Draw) -> str:
    return f"dropout gets a tensor of shape {list(shape)}, and the plan's is {draw}"
