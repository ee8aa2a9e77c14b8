"""Whole tensors on one rank each, their owners: gathered from shards, and scattered to them again.

The shards' ranks are a grid of the mesh dims that shard: tensors go over one after the other, so every
message is between the ranks of one mesh dim. The n-th of a round of tensors belongs to the n-th rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor, Replicate

from planc.runtime.torch.parallel.packing import Packing
from planc.vocab import local_length

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Level:
    """A mesh dim that shards a tensor, as this rank sees it, and the tensor dimension that it shards."""

    group: ProcessGroup
    tensor_dim: int

    @property
    def size(self) -> int:
        return self.group.size()

    def shard(self, shape: Shape, index: int) -> Shape:
        """The shape of a rank's shard."""
        length = local_length(shape[self.tensor_dim], parts=self.size, index=index)
        return (*shape[: self.tensor_dim], length, *shape[self.tensor_dim + 1 :])

    def shards(self, tensor: Tensor) -> tuple[Tensor, ...]:
        """Every rank's shard."""
        lengths = [self.shard(tuple(tensor.shape), index)[self.tensor_dim] for index in range(self.size)]
        parts: tuple[Tensor, ...] = torch.split(tensor, lengths, dim=self.tensor_dim)
        return parts


@dataclass(frozen=True, slots=True)
class Sharded:
    """The sharding of a tensor: its whole shape, and the levels that shard it, the last to shard first.

    `packing` is that of the last level's shards.
    """

    shape: Shape
    levels: tuple[Level, ...]
    packing: Packing | None = None

    def shape_at(self, depth: int) -> Shape:
        """The shape once this rank has gathered the first `depth` levels."""
        shape = self.shape
        for level in reversed(self.levels[depth:]):
            shape = level.shard(shape, level.group.rank())
        return shape

    def own_part(self, whole: Tensor) -> Tensor:
        """This rank's shard of a tensor that it has whole; dimensions of length 1 are not sharded."""
        if self.packing is not None and whole.shape[self.packing.tensor_dim] > 1:
            whole = self.packing.in_ranks_order(whole)
        for level in reversed(self.levels):
            if whole.shape[level.tensor_dim] > 1 or self.shape[level.tensor_dim] == 1:
                whole = level.shards(whole)[level.group.rank()]
        return whole


def sharded(parameter: Tensor, packing: Packing | None) -> Sharded:
    """Return a parameter's sharding. FSDP, whose mesh dims come first, shards what tp leaves."""
    if not isinstance(parameter, DTensor):
        return Sharded(tuple(parameter.shape), ())
    mesh, placed = parameter.device_mesh, enumerate(parameter.placements)
    levels = (
        Level(mesh.get_group(index), getattr(placement, "dim") % parameter.ndim)  # noqa: B009  # strided shards have no public class
        for index, placement in placed
        if placement != Replicate() and mesh.size(index) > 1
    )
    return Sharded(tuple(parameter.shape), tuple(levels), packing)


def on_owners(
    held: Sequence[Sharded], shards: Sequence[Tensor], compute: Callable[[int, Tensor], Tensor]
) -> list[Tensor]:
    """This rank's shards of what the owners compute from whole tensors: a round, all over equal groups.

    `compute` gets a tensor's number and the tensor, and returns one of the same shape.
    """
    groups = [level.group for level in held[0].levels] if held else []
    sizes = [group.size() for group in groups]
    places = [_place(number, sizes) for number in range(len(held))]
    mine = dict(enumerate(shards))
    for depth, group in enumerate(groups):
        mine = _gather(mine, held, places, depth=depth, group=group, like=shards[0])
    for number, tensor in mine.items():
        packing = held[number].packing
        whole = tensor if packing is None else packing.in_own_order(tensor)
        done = compute(number, whole)
        mine[number] = done if packing is None else packing.in_ranks_order(done)
    for depth, group in reversed([*enumerate(groups)]):
        mine = _scatter(mine, held, places, depth=depth, group=group, like=shards[0])
    return [mine[number] for number in range(len(held))]


def _place(number: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """The place of the n-th rank in a grid, of which the last dimension runs fastest."""
    place = []
    for depth in range(len(sizes)):
        number, rest = divmod(number, prod(sizes[depth + 1 :]))
        place.append(number)
        number = rest
    return tuple(place)


def _gather(
    mine: dict[int, Tensor],
    held: Sequence[Sharded],
    places: Sequence[tuple[int, ...]],
    *,
    depth: int,
    group: ProcessGroup,
    like: Tensor,
) -> dict[int, Tensor]:
    """Send every shard towards its owner; the tensors of this rank, gathered over the group."""
    kept = [number for number in mine if places[number][depth] == group.rank()]
    shapes = [
        [held[number].levels[depth].shard(held[number].shape_at(depth + 1), source) for number in kept]
        for source in range(group.size())
    ]
    sent = [[mine[number] for number in mine if places[number][depth] == to] for to in range(group.size())]
    received = _exchange(sent, shapes, group=group, like=like)
    return {
        number: torch.cat([part[at] for part in received], dim=held[number].levels[depth].tensor_dim)
        for at, number in enumerate(kept)
    }


def _scatter(
    mine: dict[int, Tensor],
    held: Sequence[Sharded],
    places: Sequence[tuple[int, ...]],
    *,
    depth: int,
    group: ProcessGroup,
    like: Tensor,
) -> dict[int, Tensor]:
    """The way back: this rank's shards of all tensors that it sent."""
    above = tuple(level.group.rank() for level in held[0].levels[:depth])
    coming = [
        [number for number, place in enumerate(places) if place[: depth + 1] == (*above, source)]
        for source in range(group.size())
    ]
    shapes = [[held[number].shape_at(depth) for number in numbers] for numbers in coming]
    shards = {number: held[number].levels[depth].shards(tensor) for number, tensor in mine.items()}
    sent = [[parts[to] for parts in shards.values()] for to in range(group.size())]
    received = _exchange(sent, shapes, group=group, like=like)
    # Owners are in the order of their tensors.
    return {
        number: part
        for numbers, parts in zip(coming, received, strict=True)
        for number, part in zip(numbers, parts, strict=True)
    }


def _exchange(
    sent: Sequence[Sequence[Tensor]],
    shapes: Sequence[Sequence[Shape]],
    *,
    group: ProcessGroup,
    like: Tensor,
) -> list[list[Tensor]]:
    """Send tensors to each rank, and return those that every rank sent, of known shapes; in one message."""
    outgoing = [part.reshape(-1) for parts in sent for part in parts]
    lengths = [[prod(shape) for shape in some] for some in shapes]
    received = like.new_empty(sum(map(sum, lengths)))
    dist.all_to_all_single(
        received,
        torch.cat(outgoing) if outgoing else like.new_empty(0),
        output_split_sizes=list(map(sum, lengths)),
        input_split_sizes=[sum(part.numel() for part in parts) for parts in sent],
        group=group,
    )
    parts = iter(torch.split(received, [length for some in lengths for length in some]))
    return [[next(parts).view(shape) for shape in some] for some in shapes]
