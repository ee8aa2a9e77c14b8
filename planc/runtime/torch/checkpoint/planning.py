"""Which rank writes what: decided once, from what every rank holds, and kept between saves.

Each rank tells rank 0 the boxes that it holds, once for all tensors that are sharded in the same way: about a
kilobyte. Of ranks that hold the same box one writes it. Rank 0 sends back every tensor's grid, which proves
that the chunks hold every element once, and from which a rank finds its own chunks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import cast, get_args

import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from planc.runtime.checkpoint_format.errors import CheckpointError
from planc.runtime.checkpoint_format.grid import Box, Grid, GridError, grid_of
from planc.runtime.checkpoint_format.manifest import Contents, TensorEntry
from planc.runtime.checkpoint_format.part import Chunk, chunks_of
from planc.runtime.checkpoint_format.records import ElementType
from planc.runtime.torch.agreement.texts import rank
from planc.runtime.torch.checkpoint.agreement import through_coordinator
from planc.runtime.torch.checkpoint.tensors import element_type
from planc.runtime.torch.parallel.blocks import Slices, blocks
from planc.runtime.torch.parallel.packing import Packing

MIN_SHARE_BYTES = 16 * 2**20
"""Replicas write in turn, but at least this much each: a load opens the file of each rank that wrote."""


@dataclass(frozen=True, slots=True)
class Block:
    """A box of a tensor that this rank holds, and where in its shard."""

    box: Box
    held: Slices


@dataclass(frozen=True, slots=True)
class SavePlan:
    """What every save of a run writes: all tensors' grids, and this rank's chunks."""

    contents: Contents
    chunks: tuple[Chunk, ...]
    held: tuple[Slices, ...]
    """The place of each chunk in its tensor's shard."""
    outline: Mapping[str, object]

    def sources(self, tensors: Mapping[str, Tensor]) -> Iterator[Tensor]:
        """This rank's chunks, in the order of its file, sharing the tensors' storage."""
        assert _outline(tensors) == self.outline, "the tensors are not those that the plan was made for"
        for chunk, held in zip(self.chunks, self.held, strict=True):
            yield local(tensors[chunk.tensor]).detach()[held]


def plan_save(
    tensors: Mapping[str, Tensor],
    *,
    packings: Mapping[str, Packing],
    group: dist.ProcessGroup | None = None,
) -> SavePlan:
    """Decide which rank writes what. Every rank must call it; nothing is written.

    All ranks raise the CheckpointError of any tensor that can't be saved.
    """

    def part() -> str:
        return holdings_of(tensors, packings)

    def whole(holdings: list[str]) -> str:
        return contents_of(tensors, packings=packings, holdings=holdings).model_dump_json()

    contents = Contents.model_validate_json(through_coordinator(part, whole, group=group))
    chunks = chunks_of(contents, rank=rank())
    mine = Blocks(packings)
    held = {
        (name, block.box): block.held
        for name in {chunk.tensor for chunk in chunks}
        for block in mine.of(name, tensors[name])
    }
    return SavePlan(
        contents, chunks, tuple(held[chunk.tensor, chunk.box] for chunk in chunks), _outline(tensors)
    )


class Blocks:
    """The boxes of tensors that this rank holds, without empty ones. Plain tensors are held whole."""

    def __init__(self, packings: Mapping[str, Packing]) -> None:
        """`packings` are those of tensors that pack several, by name."""
        self._packings = packings
        # torch takes milliseconds to find a rank's rows where fsdp and tp shard the same dim.
        self._found: dict[object, tuple[Block, ...]] = {}

    def of(self, name: str, tensor: Tensor) -> tuple[Block, ...]:
        packing = self._packings.get(name)
        mesh = id(tensor.device_mesh) if isinstance(tensor, DTensor) else None
        key = (_kind(tensor, packing), mesh)
        if key not in self._found:
            self._found[key] = tuple(_blocks(tensor, packing))
        return self._found[key]


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def contents_of(
    tensors: Mapping[str, Tensor], *, packings: Mapping[str, Packing], holdings: list[str]
) -> Contents:
    """The grids that cover what ranks hold. CheckpointError if some part of a tensor is held by none."""
    reports = [json.loads(one) for one in holdings]
    for other, report in enumerate(reports):
        if report["state"] != reports[0]["state"]:
            raise CheckpointError(
                f"rank {other} holds other tensors than rank 0",
                help="report this as a bug: all ranks of a run have one model",
            )
    kinds = _kinds(tensors, packings)
    holders = [
        _holders([report["boxes"][kind] for report in reports]) for kind in range(len(set(kinds.values())))
    ]
    turns = _turns(tensors, kinds, holders)
    grids: dict[Grid, int] = {}
    indices: dict[tuple[int, int], int] = {}
    entries = {}
    for name, tensor in sorted(tensors.items()):
        kind, turn = kinds[name], turns[name]
        if (kind, turn) not in indices:
            writers = {box: ranks[turn % len(ranks)] for box, ranks in holders[kind].items()}
            indices[kind, turn] = grids.setdefault(_grid(name, tensor, writers), len(grids))
        entries[name] = TensorEntry(
            dtype=cast(ElementType, element_type(tensor.dtype)),
            shape=tuple(tensor.shape),
            grid=indices[kind, turn],
        )
    return Contents(grids=tuple(grids), tensors=entries)


def whole_tensors(shapes: Mapping[str, tuple[tuple[int, ...], str]]) -> Contents:
    """The contents of a checkpoint that one process writes, by each tensor's shape and dtype."""
    grids: dict[Grid, int] = {}
    entries = {}
    for name, (shape, dtype) in sorted(shapes.items()):
        writers = {Box((0,) * len(shape), shape): 0} if prod(shape) else {}
        grid = grids.setdefault(grid_of(shape, writers), len(grids))
        entries[name] = TensorEntry(dtype=cast(ElementType, dtype), shape=shape, grid=grid)
    return Contents(grids=tuple(grids), tensors=entries)


def holdings_of(tensors: Mapping[str, Tensor], packings: Mapping[str, Packing]) -> str:
    """The boxes that this rank holds of each kind of tensor, and a digest of what is equal on all ranks."""
    for name, tensor in tensors.items():
        if element_type(tensor.dtype) not in get_args(ElementType):
            raise CheckpointError(
                f"{name} is {element_type(tensor.dtype)}",
                help=f"use one of {', '.join(get_args(ElementType))}",
            )
    kinds = _kinds(tensors, packings)
    examples = {kind: name for name, kind in reversed(kinds.items())}
    boxes = [
        [block.box for block in _blocks(tensors[name], packings.get(name))]
        for _, name in sorted(examples.items())
    ]
    state = [
        (name, str(tensors[name].dtype), tuple(tensors[name].shape), kind) for name, kind in kinds.items()
    ]
    return json.dumps({"state": hashlib.sha256(repr(state).encode()).hexdigest(), "boxes": boxes})


def _kinds(tensors: Mapping[str, Tensor], packings: Mapping[str, Packing]) -> dict[str, int]:
    """A number for each tensor, the same for tensors of one shape that are sharded in the same way."""
    numbers: dict[object, int] = {}
    return {
        name: numbers.setdefault(_kind(tensor, packings.get(name)), len(numbers))
        for name, tensor in sorted(tensors.items())
    }


def _kind(tensor: Tensor, packing: Packing | None) -> object:
    shape = tuple(tensor.shape)
    if not isinstance(tensor, DTensor):
        return shape
    mesh = tensor.device_mesh
    return shape, tuple(mesh.shape), mesh.mesh_dim_names, str(tensor.placements), packing


def _holders(boxes_by_rank: list[list[list[list[int]]]]) -> dict[Box, list[int]]:
    found: dict[Box, list[int]] = {}
    for holder, boxes in enumerate(boxes_by_rank):
        for offsets, sizes in boxes:
            found.setdefault(Box(tuple(offsets), tuple(sizes)), []).append(holder)
    return found


def _turns(
    tensors: Mapping[str, Tensor], kinds: Mapping[str, int], holders: list[dict[Box, list[int]]]
) -> dict[str, int]:
    """For each tensor, which of the ranks that hold a box writes it: each about as many bytes.

    Ranks write neighbors by name, so a rank that loads finds what it needs in few files.
    """
    numbers: dict[object, int] = {}
    groups = [numbers.setdefault(tuple(sorted(map(tuple, one.values()))), len(numbers)) for one in holders]
    num_replicas = [max(map(len, one.values()), default=1) for one in holders]
    sizes = {
        name: tensor.nbytes / max(1, len(holders[kinds[name]])) for name, tensor in sorted(tensors.items())
    }
    totals = dict.fromkeys(groups, 0.0)
    for name, size in sizes.items():
        totals[groups[kinds[name]]] += size
    before = dict.fromkeys(totals, 0.0)
    turns = {}
    for name, size in sizes.items():
        group, among = groups[kinds[name]], num_replicas[kinds[name]]
        share = max(totals[group] / among, MIN_SHARE_BYTES)
        turns[name] = min(among - 1, int((before[group] + size / 2) / share))
        before[group] += size
    return turns


def _grid(name: str, tensor: Tensor, writers: Mapping[Box, int]) -> Grid:
    try:
        return grid_of(tuple(tensor.shape), writers)
    except GridError as error:
        raise CheckpointError(
            f"{name} would not be saved completely: {error}",
            help="report this as a bug: the checkpoint would not load",
        ) from error


def _blocks(tensor: Tensor, packing: Packing | None) -> Iterator[Block]:
    found = blocks(tensor, packing) if isinstance(tensor, DTensor) else [(_whole(tensor), _whole(tensor))]
    for block, held in found:
        box = Box(tuple(one.start for one in block), tuple(one.stop - one.start for one in block))
        if prod(box.sizes):
            yield Block(box, held)


def _outline(tensors: Mapping[str, Tensor]) -> dict[str, object]:
    return {name: (tensor.dtype, tuple(local(tensor).shape)) for name, tensor in tensors.items()}


def _whole(tensor: Tensor) -> Slices:
    return tuple(slice(0, size) for size in tensor.shape)
