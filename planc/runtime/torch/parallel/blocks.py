"""The position of a rank's shard in the whole tensor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.distributed.tensor import DTensor, Replicate

from planc.runtime.torch.private import local_block, strided_shard
from planc.vocab import local_length

Slices = tuple[slice, ...]


def is_packed(tensor: DTensor) -> bool:
    """Whether tensor parallelism sharded the tensor in each of the parts that it packs.

    FSDP makes strided shards too, over a mesh dim outside that of tensor parallelism, which is the last.
    """
    return isinstance(tensor.placements[-1], strided_shard)


def blocks(tensor: DTensor) -> Iterator[tuple[Slices, Slices]]:
    """(slices of the whole tensor, slices of this rank's shard) of every block that the rank holds.

    A shard is one block of the whole, or one of each part of a tensor that packs several. No other mesh dim
    shards the packed dimension.
    """
    mesh, placements = tensor.device_mesh, tensor.placements
    if not is_packed(tensor):
        shape, offset = local_block(tensor.shape, mesh, placements)
        yield _slices(offset, shape), tuple(slice(0, size) for size in shape)
        return
    packed: Any = placements[-1]
    shape, offset = local_block(tensor.shape, mesh, (*placements[:-1], Replicate()))
    whole, local = _slices(offset, shape), [slice(0, size) for size in shape]
    length = tensor.shape[packed.dim] // packed.split_factor
    index, parts = mesh.get_local_rank(mesh.ndim - 1), mesh.size(mesh.ndim - 1)
    share, start = local_length(length, parts=parts, index=index), -(-length // parts) * index
    for part in range(packed.split_factor):
        block, held = list(whole), list(local)
        block[packed.dim] = slice(part * length + start, part * length + start + share)
        held[packed.dim] = slice(part * share, (part + 1) * share)
        yield tuple(block), tuple(held)


def _slices(offset: tuple[int, ...], shape: tuple[int, ...]) -> Slices:
    return tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))
