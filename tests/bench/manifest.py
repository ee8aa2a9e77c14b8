"""What a checkpoint's metadata costs on many ranks: `python -m tests.bench.manifest`, into MANIFEST.md.

Llama 405B with AdamW on dp_replicate x dp_shard x tp, up to 163,840 ranks: tensors without memory, on a mesh
without process groups, through the functions that a save and a load call. What the other ranks would report
follows from their coordinates, by this file's own arithmetic, which the own rank's report must equal. Seconds
are of CPU time, and bytes of memory are the most beyond what the process had before.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import date
from importlib.metadata import version
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from planc.runtime.checkpoint_format.grid import Box
from planc.runtime.checkpoint_format.manifest import MANIFEST_NAME, Contents, Manifest, PartEntry, Progress
from planc.runtime.checkpoint_format.part import Part, chunks_of, header_of, part_name
from planc.runtime.checkpoint_format.part_files import read_part, shares, write_synced
from planc.runtime.checkpoint_format.records import seal
from planc.runtime.checkpoint_format.verify import read_manifest
from planc.runtime.torch.checkpoint.planning import Blocks, contents_of, holdings_of, outline_of
from tests.bench.meter import memory, reset_peak

PAGE = Path(__file__).parent / "MANIFEST.md"
HIDDEN, INTERMEDIATE, VOCABULARY, KEY_VALUE, NUM_LAYERS = 16384, 53248, 128256, 1024, 126
ZEROS = "0" * 64
T = TypeVar("T")

_NOTES = """\
- Format 3 was a single JSON of all chunks: 217_728 chunks, of 64 ranks, took 33 MB, 1.9 s to parse and 0.4 GB
  of memory, and it grew with the chunks. The 14 million of 16_384 ranks would have been 2 GB, 120 to 160 s.
- The plan is made at the first save of a run, and kept. A later save sends rank 0 some hundred bytes a rank.
- A rank's part does not grow with the ranks. The manifest grows with the ranks, by the hash of each part, and
  not with the product of ranks and tensors."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """The sizes of dp_replicate, dp_shard and tp."""

    replicas: int
    shards: int
    tp: int

    @property
    def num_ranks(self) -> int:
        return self.replicas * self.shards * self.tp

    def __str__(self) -> str:
        return f"{self.replicas} x {self.shards} x {self.tp}"


MESHES = (Mesh(4, 64, 8), Mesh(4, 512, 8), Mesh(40, 512, 8))
SAVED, ANOTHER = MESHES[1], Mesh(2, 256, 8)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one task of one rank takes, and the size of what it makes or reads."""

    task: str
    seconds: float
    memory_bytes: int
    num_bytes: int
    note: str = ""

    def __str__(self) -> str:
        size = f"{self.num_bytes / 1e3:_.1f} kB" if self.num_bytes else self.note
        return f"{self.seconds:.2f} s, {self.memory_bytes / 1e6:.0f} MB of memory, {size}"


class Meter:
    """Costs of the tasks, in order."""

    def __init__(self) -> None:
        self.costs: list[Cost] = []

    def measure(self, task: str, function: Callable[[], T], *, size: Callable[[T], int]) -> T:
        reset_peak()
        before, began = memory("VmRSS"), time.process_time()
        result = function()
        seconds = time.process_time() - began
        self.costs.append(Cost(task, seconds, max(0, memory("VmHWM") - before), size(result)))
        return result


Cutting = tuple[tuple[int, ...], str]
"""A parameter's shape, and how it is sharded: by rows, by columns, or by fsdp alone."""


def parameters() -> Iterator[tuple[str, Cutting]]:
    yield "model.embed_tokens.weight", ((VOCABULARY, HIDDEN), "rows")
    for layer in range(NUM_LAYERS):
        start = f"model.layers.{layer}."
        for name, rows in (("q", HIDDEN), ("k", KEY_VALUE), ("v", KEY_VALUE)):
            yield f"{start}self_attn.{name}_proj.weight", ((rows, HIDDEN), "rows")
        yield f"{start}self_attn.o_proj.weight", ((HIDDEN, HIDDEN), "columns")
        for name in ("gate", "up"):
            yield f"{start}mlp.{name}_proj.weight", ((INTERMEDIATE, HIDDEN), "rows")
        yield f"{start}mlp.down_proj.weight", ((HIDDEN, INTERMEDIATE), "columns")
        for name in ("input", "post_attention"):
            yield f"{start}{name}_layernorm.weight", ((HIDDEN,), "fsdp")
    yield "model.norm.weight", ((HIDDEN,), "fsdp")
    yield "lm_head.weight", ((VOCABULARY, HIDDEN), "rows")


def box_at(cutting: Cutting, mesh: Mesh, *, shard: int, tp: int) -> Box:
    """What the rank at these coordinates holds, by the arithmetic of sharding."""
    (length, *others), kind = cutting
    if kind == "rows":
        begin, end = piece(0, length, mesh.tp, tp)
        begin, end = piece(begin, end, mesh.shards, shard)
        return Box((begin, *(0 for _ in others)), (end - begin, *others))
    begin, end = piece(0, length, mesh.shards, shard)
    if kind == "fsdp":
        return Box((begin,), (end - begin,))
    first, last = piece(0, others[0], mesh.tp, tp)
    return Box((begin, first), (end - begin, last - first))


def piece(begin: int, end: int, count: int, index: int) -> tuple[int, int]:
    width = -(-(end - begin) // count)
    return min(end, begin + index * width), min(end, begin + (index + 1) * width)


def state(mesh: Mesh) -> dict[str, Tensor]:
    """The tensors of rank 0, without memory."""
    ranks = torch.arange(mesh.num_ranks).view(mesh.replicas, mesh.shards, mesh.tp)
    names = ("dp_replicate", "dp_shard", "tp")
    devices = DeviceMesh("cpu", ranks, mesh_dim_names=names, _init_backend=False, _rank=0)
    placements: dict[str, list[Placement]] = {
        "rows": [Replicate(), _StridedShard(0, split_factor=mesh.tp), Shard(0)],
        "columns": [Replicate(), Shard(0), Shard(1)],
        "fsdp": [Replicate(), Shard(0), Replicate()],
    }
    tensors: dict[str, Tensor] = {}
    for name, cutting in parameters():
        shape, kind = cutting
        local = torch.empty(box_at(cutting, mesh, shard=0, tp=0).sizes, device="meta")
        stride = (shape[1], 1) if len(shape) == 2 else (1,)
        for key in (f"model.{name}", f"optimizer.{name}.exp_avg", f"optimizer.{name}.exp_avg_sq"):
            tensors[key] = DTensor.from_local(
                local, devices, placements[kind], run_check=False, shape=torch.Size(shape), stride=stride
            )
        tensors[f"optimizer.{name}.step"] = torch.empty((), device="meta")
    return tensors


def reports(own: str, mesh: Mesh, tensors: dict[str, Tensor]) -> list[str]:
    """What every rank reports; the first must be what rank 0 has reported itself."""
    cuttings = dict(parameters())
    kinds: dict[object, Cutting | None] = {}
    # The kinds are numbered by the first tensor of each, in the order of names.
    for name in sorted(tensors):
        cutting = cuttings.get(name.removeprefix("model.")) if name.startswith("model.") else None
        if cutting is not None:
            kinds.setdefault(cutting, cutting)
        elif name.endswith(".step"):
            kinds.setdefault("step", None)
    fields = json.loads(own)
    found = []
    for _, shard, tp in product(range(mesh.replicas), range(mesh.shards), range(mesh.tp)):
        boxes = []
        for cutting in kinds.values():
            box = box_at(cutting, mesh, shard=shard, tp=tp) if cutting else Box((), ())
            boxes.append([box] if all(box.sizes) else [])
        found.append(json.dumps({"state": fields["state"], "boxes": boxes}))
    assert found[0] == own, "the bench's arithmetic is not that of the placements"
    return found


def measure(mesh: Mesh, folder: Path) -> list[Cost]:
    """The costs of a save's first plan, of a save, and of a load on the same mesh and on another."""
    meter, tensors = Meter(), state(mesh)
    own = meter.measure(
        "first save, a rank: report what it holds", lambda: holdings_of(tensors, {}), size=len
    )
    every = reports(own, mesh, tensors)
    text = meter.measure(
        "first save, rank 0: plan for all ranks",
        lambda: contents_of([outline_of(tensors, {})], holdings=every).model_dump_json(),
        size=len,
    )
    contents = meter.measure(
        "first save, a rank: take the plan",
        lambda: Contents.model_validate_json(text),
        size=lambda _: len(text),
    )
    chunks = chunks_of(contents, rank=0)
    part = meter.measure(
        "save, a rank: its part",
        lambda: Part(step=1, rank=0, chunks={chunk.entry.key: ZEROS for chunk in chunks}).model_dump_json(),
        size=len,
    )
    written = write_synced(folder / part_name(0), part)
    entry = PartEntry(
        size_bytes=written.size_bytes,
        sha256=written.sha256,
        shard_bytes=len(header_of(chunks)) + sum(chunk.entry.size_bytes for chunk in chunks),
    )
    writing = contents.ranks()
    lines = [entry.model_dump_json() if rank in writing else "" for rank in range(mesh.num_ranks)]
    sealed = meter.measure("save, rank 0: the manifest", lambda: manifest_text(contents, lines), size=len)
    write_synced(folder / MANIFEST_NAME, sealed)
    return [*meter.costs, *loads(mesh, folder, rank=0)]


def manifest_text(contents: Contents, lines: list[str]) -> str:
    return seal(
        Manifest(
            planc_version="0",
            torch_version="0",
            step=1,
            plan_hash="",
            model_digest="",
            mesh={},
            progress=Progress(step=1, samples_consumed=0, seed=0, data_fingerprint=""),
            contents=contents,
            parts=tuple(PartEntry.model_validate_json(line) if line else None for line in lines),
        )
    )


def loads(mesh: Mesh, folder: Path, *, rank: int) -> tuple[Cost, ...]:
    """What one rank reads and works out before it reads tensors."""
    meter = Meter()
    size = (folder / MANIFEST_NAME).stat().st_size
    manifest = meter.measure("load, a rank: the manifest", lambda: read_manifest(folder), size=lambda _: size)
    meter.measure(
        "load, a rank: its part",
        lambda: read_part(folder, manifest=manifest, rank=rank),
        size=lambda _: (folder / part_name(rank)).stat().st_size,
    )
    for name, other in (("the same mesh", mesh), (str(ANOTHER), ANOTHER)):
        tensors = state(other)
        task = f"load on {name}, a rank: where its values are"
        files = meter.measure(task, lambda tensors=tensors: near(manifest, tensors), size=lambda _: 0)
        num_shares = len(shares(manifest, rank=0, world_size=other.num_ranks))
        note = f"{len(files)} files, {num_shares} of them to verify"
        meter.costs[-1] = replace(meter.costs[-1], note=note)
    return tuple(meter.costs)


def near(manifest: Manifest, tensors: dict[str, Tensor]) -> set[int]:
    """The ranks whose files hold what rank 0 needs, with each of their chunks placed."""
    found: set[int] = set()
    boxes: dict[tuple[int, Box], set[int]] = {}
    blocks = Blocks({})
    for name, tensor in tensors.items():
        grid = manifest.tensors[name].grid
        for block in blocks.of(name, tensor):
            if (grid, block.box) not in boxes:
                boxes[grid, block.box] = manifest.contents.grids[grid].writers_near(block.box)
            found |= boxes[grid, block.box]
    for rank in found:
        header_of(chunks_of(manifest.contents, rank=rank))
    return found


def table(costs: dict[Mesh, list[Cost]]) -> str:
    rows = ["| what | " + " | ".join(f"{mesh.num_ranks:_} ranks" for mesh in costs) + " |"]
    rows.append("|---|" + "---|" * len(costs))
    for same in zip(*costs.values(), strict=True):
        rows.append(f"| {same[0].task} | {' | '.join(map(str, same))} |")
    return "\n".join(rows)


def write_page(costs: dict[Mesh, list[Cost]]) -> None:
    place = f"Python {platform.python_version()}, Linux {platform.release().partition('-')[0]}"
    meshes = ", ".join(f"{mesh} = {mesh.num_ranks:_} ranks" for mesh in costs)
    PAGE.write_text(
        f"# Manifests\n\n{date.today().isoformat()}, torch {version('torch')}, {place}.\n\n"
        "`python -m tests.bench.manifest`: a checkpoint of Llama 405B with AdamW, without tensors' bytes, "
        f"on dp_replicate x dp_shard x tp: {meshes}. Seconds of CPU time; the most memory beyond what the "
        f"process had before; bytes that are written, sent or read.\n\n{table(costs)}\n\n{_NOTES}\n",
        encoding="utf-8",
    )


def main() -> int:
    costs: dict[Mesh, list[Cost]] = {}
    for mesh in MESHES:
        with TemporaryDirectory(prefix="planc-manifest-") as folder:
            costs[mesh] = measure(mesh, Path(folder))
        for cost in costs[mesh]:
            print(f"{mesh.num_ranks:>8_}  {cost.task:<55} {cost}", flush=True)
    write_page(costs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
