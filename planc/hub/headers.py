"""The headers of safetensors files, read without a library."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

_MAX_BYTES = 2**26


def tensor_shapes(path: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the tensors of a safetensors file with their shapes. ValueError if the file can't be read."""
    try:
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if length > _MAX_BYTES:
                raise ValueError("its header is larger than one of tensors")
            header = json.loads(stream.read(length))
        for key, entry in header.items():
            if key != "__metadata__":
                yield key, tuple(map(int, entry["shape"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path.name} cannot be read: {error}") from error
