"""Fill tensors with a checkpoint's values: while they are verified, or afterwards."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from planc.runtime.checkpoint_format.grid import Box
from planc.runtime.checkpoint_format.part import Chunk
from planc.runtime.torch.checkpoint.chunks import ChunkReader, copy_common, is_overlap
from planc.runtime.torch.checkpoint.planning import Blocks, local
from planc.runtime.torch.checkpoint.saving import as_bytes
from planc.runtime.torch.parallel.packing import Packing


class Filling:
    """The blocks of tensors that a rank fills. `view` and `take` fill them with chunks as they are verified.

    So a chunk that a rank both verifies and needs is read once. The rest is copied by `finish`.
    """

    def __init__(self, tensors: Mapping[str, Tensor], *, packings: Mapping[str, Packing]) -> None:
        blocks = Blocks(packings)
        self._targets = {
            name: tuple((block.box, local(tensor).detach()[block.held]) for block in blocks.of(name, tensor))
            for name, tensor in tensors.items()
        }
        self._taken: set[tuple[str, Box]] = set()

    def view(self, chunk: Chunk) -> memoryview | None:
        """Memory to read a chunk into: the tensor's own if it is the chunk. None for one not needed."""
        near = self._near(chunk)
        if not near:
            return None
        box, target = near[0]
        if box == chunk.box and target.device.type == "cpu" and target.is_contiguous():
            return as_bytes(target)
        return memoryview(bytearray(chunk.entry.size_bytes))

    def take(self, chunk: Chunk, view: memoryview) -> None:
        """Copy a verified chunk to where it is needed."""
        dtype: torch.dtype = getattr(torch, chunk.entry.dtype)
        values = torch.frombuffer(view, dtype=dtype).view(chunk.box.sizes)
        for box, target in self._near(chunk):
            if target.data_ptr() != values.data_ptr():
                copy_common(values, chunk.box, out=target, box=box)
        self._taken.add((chunk.tensor, chunk.box))

    def finish(self, reader: ChunkReader) -> None:
        """Copy everything that was not taken."""
        for name, targets in self._targets.items():
            for box, target in targets:
                reader.copy(name, box, out=target, taken=self._taken)

    def _near(self, chunk: Chunk) -> list[tuple[Box, Tensor]]:
        return [one for one in self._targets.get(chunk.tensor, ()) if is_overlap(one[0], chunk.box)]
