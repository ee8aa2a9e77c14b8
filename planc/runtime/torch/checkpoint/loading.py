"""Load a checkpoint on any mesh: all of it is verified before any of it is used."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from planc.runtime.checkpoint_format.errors import CorruptCheckpointError
from planc.runtime.checkpoint_format.grid import Box
from planc.runtime.checkpoint_format.layout import latest
from planc.runtime.checkpoint_format.manifest import Manifest
from planc.runtime.checkpoint_format.part import Chunk
from planc.runtime.checkpoint_format.part_files import Taker, shares
from planc.runtime.checkpoint_format.verify import (
    parse_manifest,
    read_manifest_text,
    verify_parts,
    verify_plan,
)
from planc.runtime.torch.agreement.agree import rank, world_size
from planc.runtime.torch.checkpoint.agreement import from_coordinator, require_on_all
from planc.runtime.torch.checkpoint.chunks import ChunkReader, copy_common, is_overlap
from planc.runtime.torch.checkpoint.planning import Blocks
from planc.runtime.torch.checkpoint.saving import as_bytes
from planc.runtime.torch.checkpoint.tensors import (
    TrainingState,
    averages_on_one_side,
    moments_on_one_side,
    moments_saved,
    named_packings,
    named_tensors,
    outline_of_all_stages,
    refuse_misfit,
)
from planc.runtime.torch.parallel.local_parts import local_of
from planc.runtime.torch.parallel.packing import Packing

_MAX_LISTED = 20


def latest_step(root: Path) -> int | None:
    """The highest committed step that rank 0 sees, on every rank. Every rank must call it."""

    def find() -> str:
        step = latest(root)
        return "" if step is None else str(step)

    found = from_coordinator(find)
    return int(found) if found else None


def load(state: TrainingState, *, directory: Path, in_place: bool = False) -> Manifest:
    """Fill model and optimizer from the checkpoint in `directory`; return its manifest.

    Every rank must call it; the mesh may differ from the one that saved. Names, shapes, dtypes, sizes,
    headers and hashes are checked first: a CheckpointError is raised on every rank, and until then no tensor
    has changed. What the checkpoint leaves to its base keeps its values. Without an optimizer, weights alone
    are filled. With `in_place` values are copied while they are hashed, which reads them once: after an error
    the tensors must not be used.
    """
    # One rank reads, so all see the same even if the file changes meanwhile.
    text = from_coordinator(partial(read_manifest_text, directory))
    manifest = parse_manifest(text, directory=directory)
    tensors = named_tensors(state)
    wanted = outline_of_all_stages(tensors, stages=state.stages)
    apart = averages_on_one_side(manifest, wanted=wanted) | (
        moments_saved(manifest) if state.optimizer is None else moments_on_one_side(manifest, wanted=wanted)
    )
    left_out = manifest.base.tensors if manifest.base is not None else {}
    filled = {name: tensor for name, tensor in tensors.items() if name not in apart | left_out.keys()}
    filling = _Filling(filled, packings=named_packings(state))

    def check() -> None:
        refuse_misfit(manifest, wanted=wanted, apart=apart)
        refuse_damage(directory, manifest=manifest, taker=filling if in_place else None)

    require_on_all(check)
    require_on_all(partial(filling.finish, ChunkReader(directory, manifest)))
    return manifest


def refuse_damage(directory: Path, *, manifest: Manifest, taker: Taker | None = None) -> None:
    """Raises CorruptCheckpointError for damage in this rank's share of the chunks."""
    share = shares(manifest, rank=rank(), world_size=world_size())
    problems = [
        *(verify_plan(directory, manifest=manifest) if rank() == 0 else ()),
        *verify_parts(directory, manifest=manifest, parts=share, taker=taker),
    ]
    if problems:
        more = [f"and {len(problems) - _MAX_LISTED} more"] if len(problems) > _MAX_LISTED else []
        listed = [str(problem) for problem in problems[:_MAX_LISTED]]
        raise CorruptCheckpointError(
            "\n".join([f"{directory} is damaged", *listed, *more]),
            help="move its directory aside to resume from an earlier step, or restore it from a backup",
        )


class _Filling:
    """The blocks of tensors that a rank fills. `view` and `take` fill them with chunks as they are verified.

    So a chunk that a rank both verifies and needs is read once. The rest is copied by `finish`.
    """

    def __init__(self, tensors: Mapping[str, Tensor], *, packings: Mapping[str, Packing]) -> None:
        blocks = Blocks(packings)
        self._targets = {
            name: tuple(
                (block.box, local_of(tensor).detach()[block.held]) for block in blocks.of(name, tensor)
            )
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
