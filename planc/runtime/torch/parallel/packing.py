"""The layout of a tensor that packs several of them, each of which tensor parallelism shards.

A rank holds its part of the first, then its part of the second, and so on. PyTorch has no placement for parts
of unequal widths, nor for parts that FSDP shards again. For PyTorch the tensor is therefore one whose shards
follow each other rank by rank: the ranks' order. Shards have the same shapes in either order, and optimizers
treat every element in the same way. What reads or writes whole tensors translates between the two with a
`Packing`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, assert_never

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from planc.vocab import PackedShard, Partial, Placement, Replicate, Shard, StridedShard

_PACKINGS = "_planc_packings"


class Piece(NamedTuple):
    """Consecutive elements along the packed dimension, in both orders."""

    held: int
    """The first of them in the ranks' order."""
    start: int
    """The first of them in the whole tensor's own order."""
    length: int


@dataclass(frozen=True, slots=True)
class Packing:
    """The widths of the parts along a tensor dimension, all of them shared by a number of ranks."""

    tensor_dim: int
    widths: tuple[int, ...]
    num_ranks: int

    def pieces(self) -> Iterator[Piece]:
        """All of the tensor, in the ranks' order."""
        held = 0
        for rank in range(self.num_ranks):
            before = 0
            for width in self.widths:
                share = width // self.num_ranks
                yield Piece(held, before + rank * share, share)
                held, before = held + share, before + width

    def pieces_of(self, block: slice) -> Iterator[Piece]:
        """The pieces of some consecutive elements in the ranks' order."""
        for piece in self.pieces():
            first = max(piece.held, block.start)
            last = min(piece.held + piece.length, block.stop)
            if first < last:
                yield Piece(first, piece.start + first - piece.held, last - first)

    def in_ranks_order(self, whole: Tensor) -> Tensor:
        """A whole tensor in the order in which ranks hold it."""
        parts = [whole.narrow(self.tensor_dim, piece.start, piece.length) for piece in self.pieces()]
        return torch.cat(parts, dim=self.tensor_dim)

    def in_own_order(self, gathered: Tensor) -> Tensor:
        """A tensor that was gathered from all ranks, in its own order."""
        pieces = sorted(self.pieces(), key=lambda piece: piece.start)
        parts = [gathered.narrow(self.tensor_dim, piece.held, piece.length) for piece in pieces]
        return torch.cat(parts, dim=self.tensor_dim)


def packing_of(placement: Placement, shape: torch.Size, *, num_ranks: int) -> Packing | None:
    """The packing of a parameter with this placement; None for one that packs nothing."""
    match placement:
        case StridedShard() | PackedShard():
            tensor_dim = placement.tensor_dim % len(shape)
            return Packing(tensor_dim, placement.widths_of(shape[tensor_dim]), num_ranks)
        case Shard() | Replicate() | Partial():
            return None
        case _:
            assert_never(placement)


def note_packings(module: nn.Module, packings: Mapping[str, Packing]) -> None:
    """Keep the packings of a module's own parameters, by local name: wrappers replace the parameters."""
    vars(module)[_PACKINGS] = dict(packings)


def packed_parameters(model: nn.Module) -> dict[Tensor, Packing]:
    """The parameters of a model that pack several tensors. Tensors hash by identity."""
    return {
        parameter: packing
        for module in model.modules()
        for name, packing in vars(module).get(_PACKINGS, {}).items()
        if (parameter := module._parameters[name]) is not None
    }


def gathered(tensor: Tensor, packing: Packing | None) -> Tensor:
    """A distributed tensor whole on every rank, in its own order; a plain one itself. All ranks call it."""
    if not isinstance(tensor, DTensor):
        return tensor
    whole: Tensor = tensor.full_tensor()
    return whole if packing is None else packing.in_own_order(whole)
