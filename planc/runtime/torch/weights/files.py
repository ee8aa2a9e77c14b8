"""The tensors of a directory's safetensors files. Headers are read at once, tensors only when sliced."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from planc.runtime.errors import RunError
from planc.runtime.model_files import weight_files
from planc.runtime.ranks.reads import Reads
from planc.runtime.torch.parallel.blocks import Slices
from planc.runtime.torch.weights.views import View, leaf
from planc.strict_json import loads
from planc.tables import plural


def stored_views(folder: Path, *, reads: Reads | None = None) -> dict[str, View]:
    """Every tensor of a directory's weight files, by its key there.

    RunError for an invalid safetensors file, and for an index that does not match the files.
    """
    files = weight_files(folder)
    paths = {files} if isinstance(files, Path) else set(files.values())
    every: dict[str, View] = {}
    for path in sorted(paths):
        views = file_views(path, reads=reads)
        if twice := sorted(views.keys() & every.keys()):
            raise RunError(f"{folder} has {twice[0]} in two files", help="remove one of them")
        every |= views
    if isinstance(files, Mapping):
        _refuse_absent(files, every)
        if reads is not None:
            index = {key: path.name for key, path in sorted(files.items())}
            reads.add_content("file", "the index of weights", json.dumps(index).encode())
    return every


def file_views(path: Path, *, reads: Reads | None = None) -> dict[str, View]:
    """Every tensor of a safetensors file, by its key. RunError for an invalid file."""
    handle = _open(path)
    if reads is not None:
        reads.add("weights", path.name, _header(path))
    entries = {key: handle.get_slice(key) for key in handle.keys()}  # noqa: SIM118
    return {
        key: leaf(key, shape=entry.get_shape(), read=functools.partial(_read, entry))
        for key, entry in entries.items()
    }


def _refuse_absent(index: Mapping[str, Path], found: Mapping[str, Any]) -> None:
    absent = [key for key in index if key not in found]
    if absent:
        more = f" nor {plural(len(absent) - 1, 'other tensor')} of the index" if len(absent) > 1 else ""
        raise RunError(
            f"{index[absent[0]]} does not contain {absent[0]}{more}",
            help="use files and an index of the same model",
        )


def _open(path: Path) -> Any:
    try:
        handle = safe_open(path, framework="pt")
        # The library uses the last duplicate; another reader may use the first.
        _refuse_repeats(path)
        return handle
    except (SafetensorError, OSError, ValueError) as error:
        raise RunError(f"{path} is not a safetensors file: {error}", help="restore the file") from error


def _header(path: Path) -> str:
    """A digest of a file's header, and its size."""
    with path.open("rb") as stream:
        length = stream.read(8)
        content = length + stream.read(int.from_bytes(length, "little"))
    return f"{path.stat().st_size} bytes with header sha256 {hashlib.sha256(content).hexdigest()[:12]}"


def _refuse_repeats(path: Path) -> None:
    """ValueError if a header names a tensor twice. The library has checked its length."""
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        loads(stream.read(length))


def _read(entry: Any, block: Slices) -> Tensor:
    """One block of a tensor in a file; a scalar has no dimension to slice."""
    values: Tensor = entry[block] if block else entry[...]
    return values
