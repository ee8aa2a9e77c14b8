"""A small checkpoint, made without torch."""

from __future__ import annotations

import hashlib
from pathlib import Path

from planc.runtime.checkpoint_format import commit
from planc.runtime.checkpoint_format.manifest import Chunk, FileEntry, Manifest, Progress, TensorEntry
from planc.runtime.checkpoint_format.shards import Entry, encode_header
from planc.vocab import MeshDim

SHARDS = {
    "rank-00000.safetensors": Entry("model.weight@0,0", "float32", (2, 3)),
    "rank-00001.safetensors": Entry("model.weight@2,0", "float32", (1, 3)),
}


def shard_bytes(entry: Entry, *, fill: int) -> bytes:
    """A file of one tensor whose bytes are all `fill`."""
    return encode_header([entry]) + bytes([fill]) * entry.size_bytes


def manifest_at(step: int) -> Manifest:
    """The manifest of the sample checkpoint."""
    files = {name: shard_bytes(entry, fill=step) for name, entry in SHARDS.items()}
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
        tensors={
            "model.weight": TensorEntry(
                dtype="float32",
                shape=(3, 3),
                chunks=(
                    Chunk(
                        file="rank-00000.safetensors", key="model.weight@0,0", offsets=(0, 0), sizes=(2, 3)
                    ),
                    Chunk(
                        file="rank-00001.safetensors", key="model.weight@2,0", offsets=(2, 0), sizes=(1, 3)
                    ),
                ),
            )
        },
        files={
            name: FileEntry(size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
            for name, data in files.items()
        },
    )


def write_shards(directory: Path, *, step: int) -> None:
    """The sample's files, as its ranks would have written them."""
    for name, entry in SHARDS.items():
        (directory / name).write_bytes(shard_bytes(entry, fill=step))


def save_sample(root: Path, *, step: int) -> Path:
    """The sample checkpoint, committed."""
    temporary = commit.begin(root, step=step)
    write_shards(temporary, step=step)
    return commit.finish(temporary, manifest=manifest_at(step))
