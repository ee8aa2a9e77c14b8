"""Bad checkpoints, by their numbers in the catalogue: how each is made of a sound one of step 10."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from planc.runtime.checkpoint_format.manifest import MANIFEST_NAME, Manifest
from planc.runtime.checkpoint_format.records import seal

STEP = 10
SHARD = "rank-00001.safetensors"
"""The middle one of three."""


class Payload:
    """Unpickling it makes a folder."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.marker),)


def payload(marker: Path) -> bytes:
    """A pickle that shows by `marker` that it has run."""
    return pickle.dumps(Payload(marker))


def edit_manifest(directory: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Changes the manifest as somebody does who knows to seal it again; it need not be valid any more."""
    path = directory / MANIFEST_NAME
    fields = json.loads(path.read_text(encoding="utf-8"))
    del fields["sha256"]
    edit(fields)
    try:
        text = seal(Manifest.model_validate_json(json.dumps(fields)))
    except ValueError:
        text = json.dumps(fields)
    path.write_text(text, encoding="utf-8")


def only_pickled_metadata(directory: Path, marker: Path) -> None:
    """A checkpoint as DCP writes them: a pickle and nothing that planc reads."""
    shutil.rmtree(directory)
    directory.mkdir()
    (directory / ".metadata").write_bytes(payload(marker))
    (directory / "__0_0.distcp").write_bytes(payload(marker))


def pickled_scalar(directory: Path, marker: Path) -> None:
    """A scalar pickled into a shard, which keeps its size."""
    size_bytes = (directory / SHARD).stat().st_size
    (directory / SHARD).write_bytes(payload(marker).ljust(size_bytes, b"\0"))


def missing_shard(directory: Path, marker: Path) -> None:
    (directory / SHARD).unlink()


def escaping_rank(directory: Path, marker: Path) -> None:
    """Chunks of a rank whose number would be a path elsewhere."""
    edit_manifest(directory, lambda fields: fields["contents"]["grids"][0].update(writers=[["../x", 0, 3]]))


def newer_format(directory: Path, marker: Path) -> None:
    edit_manifest(directory, lambda fields: fields.update(format_version=99, compression="zstd"))


def linked_shard(directory: Path, marker: Path) -> None:
    """The shard elsewhere, and a symbolic link in its place."""
    elsewhere = directory.parent / "elsewhere.safetensors"
    (directory / SHARD).rename(elsewhere)
    (directory / SHARD).symlink_to(elsewhere)


def overlapping_chunks(directory: Path, marker: Path) -> None:
    """One chunk said to begin where another has not ended."""

    def move(fields: dict[str, Any]) -> None:
        grid = fields["contents"]["tensors"]["model.0.weight"]["grid"]
        # 33 rows over 3 ranks.
        fields["contents"]["grids"][grid]["cuts"][0] = [[10, 1], [12, 1], [11, 1]]

    edit_manifest(directory, move)


REFUSED: Mapping[str, tuple[Callable[[Path, Path], None], str]] = {
    "90 pickled .metadata": (only_pickled_metadata, "has no manifest.json"),
    "91 pickled scalar": (pickled_scalar, "header"),
    "92 missing middle shard": (missing_shard, f"{SHARD}: cannot be read"),
    "93 path that leads out": (escaping_rank, "is not a manifest: "),
    "95 newer format": (newer_format, "is in format 99"),
    "98 shard linked out": (linked_shard, f"{SHARD}: {SHARD} can't be read"),
    "100 overlapping chunks": (overlapping_chunks, "which the manifest does not place there"),
}
"""What makes a checkpoint bad, and what its refusal says."""
