"""Shards of several blocks, stored and filled by DCP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.tensor import DTensor

from planc.runtime.torch.parallel.blocks import blocks
from planc.runtime.torch.parallel.packing import Packing


class PackedChunks:
    """A rank's shard of a tensor that packs several, each of which is sharded.

    DCP treats a DTensor's shard as one block of the whole. It asks objects of other types for their chunks,
    by the methods below, so files use the whole tensor's own order, whatever the mesh.
    """

    def __init__(self, tensor: DTensor, packing: Packing) -> None:
        local = tensor.to_local()
        self._size = tensor.size()
        self._parts = {
            torch.Size([one.start for one in block]): local[held] for block, held in blocks(tensor, packing)
        }

    def size(self) -> torch.Size:
        return self._size

    def part(self, index: MetadataIndex) -> Tensor:
        """The block at an offset, sharing the shard's storage."""
        assert index.offset is not None, "chunks have offsets"
        return self._parts[index.offset]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(offset, part.size()) for offset, part in self._parts.items()]

    def __create_write_items__(self, fqn: str, _: object) -> list[WriteItem]:
        return [
            WriteItem(
                index=MetadataIndex(fqn, offset),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=ChunkStorageMetadata(offset, part.size()),
                    properties=TensorProperties.create_from_tensor(part),
                    size=self._size,
                ),
            )
            for offset, part in self._parts.items()
        ]


def with_packed_chunks(tensors: Mapping[str, Any], packings: Mapping[str, Packing]) -> dict[str, Any]:
    """The tensors, with PackedChunks for those whose shards are several blocks."""
    return {
        name: PackedChunks(tensor, packings[name]) if name in packings else tensor
        for name, tensor in tensors.items()
    }
