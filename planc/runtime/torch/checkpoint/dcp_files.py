"""Read the tensors of a plain DCP checkpoint in one process, without unpickling anything unexpected."""

from __future__ import annotations

import pickle
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from planc.runtime.checkpoint_format.dcp import DcpIndex, DcpTensor, Place
from planc.runtime.checkpoint_format.errors import CorruptCheckpointError, storage_errors
from planc.runtime.checkpoint_format.part_files import open_beneath
from planc.runtime.torch.checkpoint.tensors import element_type

_HELP = "restore it from a backup"


class DcpReader:
    """Reads the checkpoint in `folder`, described by an `index` that was checked for plausibility.

    CorruptCheckpointError for anything that does not match the index, or might run code.
    """

    def __init__(self, folder: Path, *, index: DcpIndex) -> None:
        self._folder = folder
        self._index = index

    def tensor(self, name: str) -> Tensor:
        """A whole tensor, copied from its chunks."""
        entry = self._index.tensors[name]
        out = torch.empty(entry.shape, dtype=getattr(torch, entry.dtype))
        for chunk in entry.chunks:
            part = self._load(chunk.place, name=name)
            if not _is(part, entry=entry, sizes=chunk.sizes):
                raise self._corrupt(
                    chunk.place, name=name, what=f"not {entry.dtype} {list(chunk.sizes)} as in the metadata"
                )
            box = tuple(
                slice(start, start + size) for start, size in zip(chunk.offsets, chunk.sizes, strict=True)
            )
            out[box] = part
        return out

    def object(self, name: str) -> Any:
        """An object that is not a tensor: a number, a text, or lists and dicts of such."""
        return self._load(self._index.objects[name], name=name)

    def _load(self, place: Place, *, name: str) -> Any:
        data = self._bytes(place, name=name)
        try:
            if not _is_stored_plainly(data):
                raise self._corrupt(place, name=name, what="compressed, so it may be larger than its file")
            return torch.load(BytesIO(data), map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            raise self._corrupt(place, name=name, what="an object of a kind that may run code") from error
        except (zipfile.BadZipFile, RuntimeError, EOFError, KeyError) as error:
            raise self._corrupt(place, name=name, what="not what torch.save has written") from error

    def _bytes(self, place: Place, *, name: str) -> bytes:
        with (
            storage_errors(f"cannot read {self._folder / place.file}"),
            open_beneath(self._folder, name=place.file) as stream,
        ):
            # `refuse_implausible` has checked that it is within the file.
            stream.seek(place.offset_bytes)
            data = stream.read(place.length_bytes)
        if len(data) < place.length_bytes:
            raise self._corrupt(place, name=name, what="truncated since it was checked")
        return data

    def _corrupt(self, place: Place, *, name: str, what: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(f"{self._folder / place.file}: {name} is {what}", help=_HELP)


def _is_stored_plainly(data: bytes) -> bool:
    """Whether an archive takes no more memory than its own bytes, as torch.save leaves it."""
    with zipfile.ZipFile(BytesIO(data)) as archive:
        return all(one.compress_type == zipfile.ZIP_STORED for one in archive.infolist())


def _is(value: object, *, entry: DcpTensor, sizes: tuple[int, ...]) -> bool:
    return (
        isinstance(value, Tensor)
        and value.layout == torch.strided
        and element_type(value.dtype) == entry.dtype
        and tuple(value.shape) == sizes
    )
