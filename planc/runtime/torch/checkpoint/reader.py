"""DCP's storage for loading: exactly the slices that a rank needs, from the manifest's files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from planc.runtime.checkpoint_format.errors import CorruptCheckpointError, storage_errors
from planc.runtime.checkpoint_format.manifest import Chunk, Manifest, TensorEntry
from planc.runtime.torch.checkpoint.packed import PackedChunks, with_packed_chunks
from planc.runtime.torch.parallel.packing import Packing


class TensorLoadPlanner(DefaultLoadPlanner):
    """DCP's planner, without its unpickling."""

    def __init__(self, packings: Mapping[str, Packing]) -> None:
        """`packings` are those of tensors that pack several, by name."""
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._packings = packings

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        super().set_up_planner(state_dict, metadata, is_coordinator)
        self.state_dict = with_packed_chunks(self.state_dict, self._packings)

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        found = self.state_dict[index.fqn]
        return found.part(index) if isinstance(found, PackedChunks) else super().lookup_tensor(index)

    def load_bytes(self, read_item: ReadItem, value: BytesIO) -> None:
        raise AssertionError(f"{read_item.dest_index.fqn}: a manifest holds tensors only")


class SafetensorsReader(StorageReader):
    """Reads the verified checkpoint in `directory`, described by `manifest`."""

    def __init__(self, directory: Path, *, manifest: Manifest) -> None:
        self._directory = directory
        self._manifest = manifest
        self._chunks = {
            MetadataIndex(name, chunk.offsets): chunk
            for name, tensor in manifest.tensors.items()
            for chunk in tensor.chunks
        }

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        pass

    def read_metadata(self) -> Metadata:
        return Metadata({name: _metadata(tensor) for name, tensor in self._manifest.tensors.items()})

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copies every item into its tensor. The future is done on return."""
        items_by_file: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            items_by_file.setdefault(self._chunks[item.storage_index].file, []).append(item)
        for file, items in items_by_file.items():
            self._read_file(file, items=items, planner=planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        # DCP is always given the reader itself.
        return False

    def _read_file(self, name: str, *, items: list[ReadItem], planner: LoadPlanner) -> None:
        path = self._directory / name
        try:
            with storage_errors(f"cannot read {path}"), safe_open(path, framework="pt") as file:
                for item in items:
                    target = planner.resolve_tensor(item).detach()
                    target.copy_(_slice(file, item=item, chunk=self._chunks[item.storage_index]))
                    planner.commit_tensor(item, target)
        except SafetensorError as error:
            # DCP sends errors to the other ranks, and this one can't be pickled.
            raise CorruptCheckpointError(
                f"{path} has changed since it was verified ({error})",
                help="make sure that nothing else writes to checkpoints",
            ) from error


def _metadata(tensor: TensorEntry) -> TensorStorageMetadata:
    dtype: torch.dtype = getattr(torch, tensor.dtype)
    return TensorStorageMetadata(
        properties=TensorProperties(dtype=dtype),
        size=torch.Size(tensor.shape),
        chunks=[
            ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.sizes))
            for chunk in tensor.chunks
        ],
    )


def _slice(file: Any, *, item: ReadItem, chunk: Chunk) -> torch.Tensor:
    """The part of a chunk that `item` asks for."""
    # A tensor of no dims cannot be sliced.
    if tuple(item.lengths) == chunk.sizes:
        whole: torch.Tensor = file.get_tensor(chunk.key)
        return whole
    ranges = zip(item.storage_offsets, item.lengths, strict=True)
    part: torch.Tensor = file.get_slice(chunk.key)[
        tuple(slice(start, start + size) for start, size in ranges)
    ]
    return part
