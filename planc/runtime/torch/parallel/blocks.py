"""The position of a rank's shard in the whole tensor."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor
from torch.distributed.tensor import DTensor

from planc.runtime.torch.parallel.packing import Packing
from planc.runtime.torch.private import local_block

Slices = tuple[slice, ...]


def blocks(tensor: DTensor, packing: Packing | None) -> Iterator[tuple[Slices, Slices]]:
    """(slices of the whole tensor, slices of this rank's shard) of every block that the rank holds.

    A shard is one block of the whole, or one of each part of a tensor that packs several.
    """
    shape, offset = local_block(tensor.shape, tensor.device_mesh, tensor.placements)
    whole, local = _slices(offset, shape), tuple(slice(0, size) for size in shape)
    if packing is None:
        yield whole, local
        return
    dim = packing.tensor_dim
    for piece in packing.pieces_of(whole[dim]):
        first = piece.held - whole[dim].start
        yield (
            _with(whole, dim, slice(piece.start, piece.start + piece.length)),
            _with(local, dim, slice(first, first + piece.length)),
        )


def local_blocks(tensor: Tensor, packing: Packing | None = None) -> Iterator[tuple[Tensor, Slices]]:
    """(memory of a block that this rank holds, slices of the whole tensor), of any tensor."""
    if not isinstance(tensor, DTensor):
        yield tensor.detach(), tuple(slice(0, size) for size in tensor.shape)
        return
    local: Tensor = tensor.to_local().detach()
    if local.numel():
        for block, held in blocks(tensor, packing):
            yield local[held], block


def _with(block: Slices, dim: int, one: slice) -> Slices:
    return (*block[:dim], one, *block[dim + 1 :])


def _slices(offset: tuple[int, ...], shape: tuple[int, ...]) -> Slices:
    return tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))
