"""DCP's storage for saving: one safetensors file per rank, hashed while it is written."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any, cast, get_args

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from planc.runtime.checkpoint_format.errors import CheckpointError, storage_errors
from planc.runtime.checkpoint_format.manifest import Chunk, ElementType, FileEntry, TensorEntry
from planc.runtime.checkpoint_format.shards import Entry, encode_header
from planc.runtime.run_directory.plain_files import create_to_write
from planc.runtime.torch.checkpoint.packed import PackedChunks, with_packed_chunks
from planc.runtime.torch.checkpoint.tensors import element_type
from planc.runtime.torch.parallel.packing import Packing


@dataclass(frozen=True, slots=True)
class Contents:
    """The chunks and files of all ranks: the manifest's two tables."""

    tensors: dict[str, TensorEntry]
    files: dict[str, FileEntry]


@dataclass(frozen=True, slots=True)
class _Stored:
    """A rank's report to the coordinator about one chunk."""

    chunk: Chunk
    file: FileEntry


@dataclass(frozen=True, slots=True)
class _Pending:
    """A chunk to write: its entry in the file, and the item that resolves to its tensor."""

    entry: Entry
    item: WriteItem


class TensorSavePlanner(DefaultSavePlanner):
    """DCP's planner, with support for shards of several blocks.

    If several ranks hold a tensor, the rank with the least to write writes it.
    """

    def __init__(self, packings: Mapping[str, Packing]) -> None:
        """`packings` are those of tensors that pack several, by name."""
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._packings = packings

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        storage_meta: StorageMeta | None = None,
        is_coordinator: bool = False,
    ) -> None:
        super().set_up_planner(state_dict, storage_meta, is_coordinator)
        self.state_dict = with_packed_chunks(self.state_dict, self._packings)

    def lookup_object(self, index: MetadataIndex) -> Any:
        found = self.state_dict[index.fqn]
        return found.part(index) if isinstance(found, PackedChunks) else super().lookup_object(index)


class SafetensorsWriter(StorageWriter):
    """Writes `rank-<rank>.safetensors` into `directory`; on the coordinator `commit` gets all contents."""

    def __init__(self, directory: Path, *, rank: int, commit: Callable[[Contents], None]) -> None:
        self._directory = directory
        self._file_name = f"rank-{rank:05}.safetensors"
        self._commit = commit

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        pass

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """The unchanged plan. CheckpointError for what DCP would pickle, and for unsupported dtypes."""
        for item in plan.items:
            if item.type == WriteItemType.BYTE_IO or item.tensor_data is None:
                raise CheckpointError(
                    f"{item.index.fqn} is not a tensor", help="put scalars into the manifest's progress"
                )
            dtype = element_type(item.tensor_data.properties.dtype)
            if dtype not in get_args(ElementType):
                raise CheckpointError(
                    f"{item.index.fqn} is {dtype}", help=f"use one of {', '.join(get_args(ElementType))}"
                )
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """One result per chunk, once the file is durable. A rank without data writes no file."""
        # Shards of a short tensor dim can be empty on the last ranks.
        pending = [_pending(item) for item in plan.items if prod(_sizes(item))]
        # Wider elements first, as `encode_header` needs.
        pending.sort(key=lambda one: (-one.entry.element_bytes, one.entry.key))
        done: Future[list[WriteResult]] = Future()
        done.set_result(self._write(pending, planner=planner) if pending else [])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        stored = [
            (result.index.fqn, cast(_Stored, result.storage_data)) for rank in results for result in rank
        ]
        chunks: dict[str, list[Chunk]] = {}
        for fqn, one in stored:
            chunks.setdefault(fqn, []).append(one.chunk)
        tensors = {
            fqn: _tensor_entry(cast(TensorStorageMetadata, tensor), chunks=chunks.get(fqn, []))
            for fqn, tensor in sorted(metadata.state_dict_metadata.items())
        }
        self._commit(Contents(tensors, files={one.chunk.file: one.file for _, one in stored}))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        # DCP is always given the writer itself.
        return False

    def _write(self, pending: list[_Pending], *, planner: SavePlanner) -> list[WriteResult]:
        file = self._write_file(pending, planner=planner)
        return [
            WriteResult(
                index=one.item.index,
                size_in_bytes=one.entry.size_bytes,
                storage_data=_Stored(_chunk(one, file_name=self._file_name), file),
            )
            for one in pending
        ]

    def _write_file(self, pending: list[_Pending], *, planner: SavePlanner) -> FileEntry:
        digest = hashlib.sha256()
        size_bytes = 0
        path = self._directory / self._file_name
        with storage_errors(f"cannot write {path}"), create_to_write(path) as stream:
            header = encode_header([one.entry for one in pending])
            # Lazily, so only one tensor at a time leaves its device.
            tensors = (_bytes(one.item, planner=planner) for one in pending)
            for data in chain([memoryview(header)], tensors):
                stream.write(data)
                digest.update(data)
                size_bytes += len(data)
            # fsync does not write what Python still buffers.
            stream.flush()
            os.fsync(stream.fileno())
        return FileEntry(size_bytes=size_bytes, sha256=digest.hexdigest())


def _sizes(item: WriteItem) -> tuple[int, ...]:
    assert item.tensor_data is not None
    return tuple(item.tensor_data.chunk.sizes)


def _offsets(item: WriteItem) -> tuple[int, ...]:
    assert item.index.offset is not None
    return tuple(item.index.offset)


def _pending(item: WriteItem) -> _Pending:
    assert item.tensor_data is not None
    dtype = cast(ElementType, element_type(item.tensor_data.properties.dtype))
    key = f"{item.index.fqn}@{','.join(str(offset) for offset in _offsets(item))}"
    return _Pending(Entry(key, dtype, _sizes(item)), item)


def _chunk(pending: _Pending, *, file_name: str) -> Chunk:
    return Chunk(
        file=file_name, key=pending.entry.key, offsets=_offsets(pending.item), sizes=pending.entry.shape
    )


def _tensor_entry(tensor: TensorStorageMetadata, *, chunks: list[Chunk]) -> TensorEntry:
    return TensorEntry(
        dtype=cast(ElementType, element_type(tensor.properties.dtype)),
        shape=tuple(tensor.size),
        chunks=tuple(sorted(chunks, key=lambda chunk: chunk.offsets)),
    )


def _bytes(item: WriteItem, *, planner: SavePlanner) -> memoryview:
    """A tensor's elements in C order, as in memory."""
    tensor = cast(torch.Tensor, planner.resolve_data(item)).detach().cpu().contiguous()
    return tensor.reshape(-1).view(torch.uint8).numpy().data
