"""The tensors of a folder's safetensors files. Headers are read at once, tensors only where sliced."""

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
from planc.runtime.model_files import INDEX, weight_files
from planc.runtime.ranks.reads import Reads
from planc.runtime.torch.parallel.blocks import Slices
from planc.runtime.torch.weights.views import View, leaf
from planc.strict_json import loads


def stored_views(folder: Path, *, reads: Reads | None = None) -> dict[str, View]:
    """Every tensor of a folder's weight files, by its key there.

    RunError for a file that is no safetensors, and for an index that is not of the files beside it.
    """
    files = weight_files(folder)
    paths = {files} if isinstance(files, Path) else set(files.values())
    found: dict[str, Any] = {}
    for path in sorted(paths):
        handle = _open(path)
        if reads is not None:
            reads.add("weights", path.name, _header(path))
        for key in handle.keys():  # noqa: SIM118
            if key in found:
                raise RunError(f"{folder} holds {key} in two files", help="leave one of them")
            found[key] = handle.get_slice(key)
    if isinstance(files, Mapping):
        _refuse_absent(files, found)
        if reads is not None:
            index = {key: path.name for key, path in sorted(files.items())}
            reads.add_content("file", INDEX, json.dumps(index).encode())
    return {
        key: leaf(key, shape=entry.get_shape(), read=functools.partial(_read, entry))
        for key, entry in found.items()
    }


def _refuse_absent(index: Mapping[str, Path], found: Mapping[str, Any]) -> None:
    absent = [key for key in index if key not in found]
    if absent:
        more = f" nor {len(absent) - 1} other tensors of the index" if len(absent) > 1 else ""
        raise RunError(
            f"{index[absent[0]]} does not hold {absent[0]}{more}", help="take files and index of one model"
        )


def _open(path: Path) -> Any:
    try:
        handle = safe_open(path, framework="pt")
        # The library takes the last of them; another reader may take the first.
        _refuse_repeats(path)
        return handle
    except (SafetensorError, OSError, ValueError) as error:
        raise RunError(f"{path} is no safetensors file: {error}", help="restore the file") from error


def _header(path: Path) -> str:
    """What a file says of its tensors, and its size."""
    with path.open("rb") as stream:
        length = stream.read(8)
        content = length + stream.read(int.from_bytes(length, "little"))
    return f"{path.stat().st_size} bytes with header sha256 {hashlib.sha256(content).hexdigest()[:12]}"


def _refuse_repeats(path: Path) -> None:
    """ValueError where a header names a tensor twice. The library has found it whole, and short enough."""
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        loads(stream.read(length))


def _read(entry: Any, block: Slices) -> Tensor:
    """One block of a tensor in a file; a scalar has no dimension to slice."""
    values: Tensor = entry[block] if block else entry[...]
    return values
