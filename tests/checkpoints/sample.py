"""A small checkpoint of two ranks, made without torch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from planc.runtime.checkpoint_format import commit
from planc.runtime.checkpoint_format.grid import Grid
from planc.runtime.checkpoint_format.manifest import (
    Contents,
    Evaluated,
    Manifest,
    PartEntry,
    Progress,
    TensorEntry,
)
from planc.runtime.checkpoint_format.shards import Entry, encode_header
from planc.vocab import MeshDim

SHARDS = {
    "rank-00000.safetensors": Entry("model.weight@0,0", "float32", (2, 3)),
    "rank-00001.safetensors": Entry("model.weight@2,0", "float32", (1, 3)),
}
CONTENTS = Contents(
    grids=(Grid(cuts=(((2, 1), (1, 1)), ((3, 1),)), writers=((0, 1, 2),)),),
    tensors={"model.weight": TensorEntry(dtype="float32", shape=(3, 3), grid=0)},
)


def shard_bytes(entry: Entry, *, fill: int) -> bytes:
    """A file of one tensor whose bytes are all `fill`."""
    return encode_header([entry]) + bytes([fill]) * entry.size_bytes


def part_bytes(entry: Entry, *, rank: int, step: int) -> bytes:
    """A rank's part: the hash of its chunk."""
    digest = hashlib.sha256(bytes([step]) * entry.size_bytes).hexdigest()
    return f'{{"step":{step},"rank":{rank},"chunks":{{"{entry.key}":"{digest}"}}}}'.encode()


def manifest_at(step: int) -> Manifest:
    """The manifest of the sample checkpoint."""
    parts = [part_bytes(entry, rank=rank, step=step) for rank, entry in enumerate(SHARDS.values())]
    return Manifest(
        planc_version="0.1.0",
        torch_version="2.13.0",
        step=step,
        plan_hash="3f9c1a2b",
        model_digest="ab" * 32,
        mesh={MeshDim.DP_SHARD: 2},
        progress=Progress(
            step=step,
            samples_consumed=8 * step,
            seed=17,
            data_fingerprint="cd" * 32,
            scheduler={"last_lr": 0.1 + 0.2, "warming_up": False},
        ),
        contents=CONTENTS,
        parts=tuple(
            PartEntry(
                size_bytes=len(part),
                sha256=hashlib.sha256(part).hexdigest(),
                shard_bytes=len(shard_bytes(entry, fill=step)),
            )
            for part, entry in zip(parts, SHARDS.values(), strict=True)
        ),
    )


def write_shards(directory: Path, *, step: int) -> None:
    """The sample's files, as its ranks would have written them."""
    for rank, (name, entry) in enumerate(SHARDS.items()):
        (directory / name).write_bytes(shard_bytes(entry, fill=step))
        part = part_bytes(entry, rank=rank, step=step)
        (directory / name).with_suffix(".json").write_bytes(part)


def save_sample(root: Path, *, step: int, evaluated: Mapping[str, Evaluated] | None = None) -> Path:
    """The sample checkpoint, committed."""
    temporary = commit.begin(root, step=step)
    write_shards(temporary, step=step)
    manifest = manifest_at(step)
    progress = manifest.progress.model_copy(update={"evaluated": dict(evaluated or {})})
    return commit.finish(temporary, manifest=manifest.model_copy(update={"progress": progress}))
