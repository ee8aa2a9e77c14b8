"""Plans which rank writes what: decided once, from what every rank holds, and kept between saves.

Each rank tells rank 0 the boxes that it holds, once for all tensors that are sharded in the same way: about a
kilobyte. Of ranks that hold the same box one writes it. Rank 0 sends back every tensor's grid, which proves
that the chunks hold every element once, and from which a rank finds its own chunks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from math import prod
from typing import Any, cast, get_args

import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from planc.runtime.checkpoint_format.errors import CheckpointError
from planc.runtime.checkpoint_format.grid import Box, Grid, GridError, grid_of
from planc.runtime.checkpoint_format.manifest import Contents, TensorEntry
from planc.runtime.checkpoint_format.part import Chunk, chunks_of
from planc.runtime.checkpoint_format.records import ElementType
from planc.runtime.torch.agreement.agree import gather, rank
from planc.runtime.torch.checkpoint.agreement import through_coordinator
from planc.runtime.torch.checkpoint.tensors import element_type
from planc.runtime.torch.parallel.blocks import Slices, blocks
from planc.runtime.torch.parallel.local_parts import local_of
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
    """The plan of all saves of a run: all tensors' grids, and this rank's chunks."""

    contents: Contents
    chunks: tuple[Chunk, ...]
    held: tuple[Slices, ...]
    """The place of each chunk in its tensor's shard."""
    outline: Mapping[str, object]

    def sources(self, tensors: Mapping[str, Tensor]) -> Iterator[Tensor]:
        """This rank's chunks, in the order of its file, sharing the tensors' storage."""
        assert _outline(tensors) == self.outline, "the tensors are not those that the plan was made for"
        for chunk, held in zip(self.chunks, self.held, strict=True):
            yield local_of(tensors[chunk.tensor]).detach()[held]


def plan_save(
    tensors: Mapping[str, Tensor],
    *,
    packings: Mapping[str, Packing],
    group: dist.ProcessGroup | None = None,
    stages: dist.ProcessGroup | None = None,
) -> SavePlan:
    """Decide which rank writes what. Every rank must call it; nothing is written.

    `stages` are the ranks in this one's place in each stage of a pipeline, each with tensors of its own. All
    ranks raise the CheckpointError of any tensor that can't be saved.
    """

    def part() -> str:
        return holdings_of(tensors, packings)

    def whole(holdings: list[str]) -> str:
        return contents_of(outlines, holdings=holdings).model_dump_json()

    outlines = [outline_of(tensors, packings)]
    if stages is not None:
        outlines = [parse_outline(text) for text in gather(dump_outline(outlines[0]), group=stages)]

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


@dataclass(frozen=True, slots=True)
class Outline:
    """A tensor's dtype, whole shape, bytes, and its number among `_kinds`."""

    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    kind: int


Outlines = Mapping[str, Outline]
"""The tensors that some ranks hold, by name."""


def outline_of(tensors: Mapping[str, Tensor], packings: Mapping[str, Packing]) -> Outlines:
    """The outlines of tensors, sorted by name."""
    return {
        name: Outline(
            element_type(tensors[name].dtype), tuple(tensors[name].shape), tensors[name].nbytes, kind
        )
        for name, kind in _kinds(tensors, packings).items()
    }


def dump_outline(outlines: Outlines) -> str:
    return json.dumps({name: astuple(one) for name, one in outlines.items()})


def parse_outline(text: str) -> Outlines:
    found = json.loads(text).items()
    return {name: Outline(dtype, tuple(shape), size, kind) for name, (dtype, shape, size, kind) in found}


def contents_of(stages: Sequence[Outlines], *, holdings: list[str]) -> Contents:
    """The grids that cover what ranks hold. CheckpointError if some part of a tensor is held by none.

    Each stage's tensors are on as many ranks, those of the first stage first; one that several stages have is
    written by the first of them.
    """
    reports = [json.loads(one) for one in holdings]
    num_ranks = len(reports) // len(stages)
    grids: dict[Grid, int] = {}
    entries: dict[str, TensorEntry] = {}
    for stage, outlines in enumerate(stages):
        ranks = range(stage * num_ranks, (stage + 1) * num_ranks)
        left = {name: one for name, one in outlines.items() if name not in entries}
        entries |= _entries(left, {rank: reports[rank] for rank in ranks}, grids)
    return Contents(grids=tuple(grids), tensors=dict(sorted(entries.items())))


def _entries(
    outlines: Outlines, reports: Mapping[int, Mapping[str, Any]], grids: dict[Grid, int]
) -> dict[str, TensorEntry]:
    """The entries of tensors that all of some ranks hold; new grids are added to `grids`."""
    first = min(reports)
    for other, report in reports.items():
        if report["state"] != reports[first]["state"]:
            raise CheckpointError(
                f"rank {other} holds other tensors than rank {first}",
                help="report this as a bug: all ranks of a run have one model",
            )
    num_kinds = len(reports[first]["boxes"])
    holders = [
        _holders({rank: report["boxes"][kind] for rank, report in reports.items()})
        for kind in range(num_kinds)
    ]
    turns = _turns(outlines, holders)
    indices: dict[tuple[int, int], int] = {}
    entries = {}
    for name, one in outlines.items():
        key = (one.kind, turns[name])
        if key not in indices:
            writers = {box: ranks[key[1] % len(ranks)] for box, ranks in holders[one.kind].items()}
            indices[key] = grids.setdefault(_grid(name, one.shape, writers), len(grids))
        entries[name] = TensorEntry(dtype=cast(ElementType, one.dtype), shape=one.shape, grid=indices[key])
    return entries


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


def _holders(boxes_by_rank: Mapping[int, list[list[list[int]]]]) -> dict[Box, list[int]]:
    found: dict[Box, list[int]] = {}
    for holder, boxes in boxes_by_rank.items():
        for offsets, sizes in boxes:
            found.setdefault(Box(tuple(offsets), tuple(sizes)), []).append(holder)
    return found


def _turns(outlines: Outlines, holders: list[dict[Box, list[int]]]) -> dict[str, int]:
    """The rank, of those that hold a tensor's box, that writes it: each about as many bytes.

    Ranks write neighbors by name, so a rank that loads finds what it needs in few files.
    """
    numbers: dict[object, int] = {}
    groups = [numbers.setdefault(tuple(sorted(map(tuple, one.values()))), len(numbers)) for one in holders]
    num_replicas = [max(map(len, one.values()), default=1) for one in holders]
    sizes = {name: one.size_bytes / max(1, len(holders[one.kind])) for name, one in outlines.items()}
    kinds = {name: one.kind for name, one in outlines.items()}
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


def _grid(name: str, shape: tuple[int, ...], writers: Mapping[Box, int]) -> Grid:
    try:
        return grid_of(shape, writers)
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
    return {name: (tensor.dtype, tuple(local_of(tensor).shape)) for name, tensor in tensors.items()}


def _whole(tensor: Tensor) -> Slices:
    return tuple(slice(0, size) for size in tensor.shape)
