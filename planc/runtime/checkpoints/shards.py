"""The header of a safetensors file, written and read without torch.

A file is 8 bytes of header length (little-endian), the header as JSON, then the tensors' bytes. The
format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, BinaryIO

from planc.runtime.checkpoints.errors import CorruptCheckpointError
from planc.runtime.checkpoints.manifest import ElementType

_MAX_HEADER_BYTES = 100_000_000
"""As in the safetensors library, so that a damaged length cannot ask for all of memory."""

_ELEMENTS: dict[ElementType, tuple[str, int]] = {
    "float64": ("F64", 8),
    "float32": ("F32", 4),
    "bfloat16": ("BF16", 2),
    "float16": ("F16", 2),
    "int64": ("I64", 8),
    "int32": ("I32", 4),
    "int16": ("I16", 2),
    "int8": ("I8", 1),
    "uint8": ("U8", 1),
    "bool": ("BOOL", 1),
}
"""The format's name of each element type, and its bytes."""

_NAMES: dict[str, ElementType] = {code: name for name, (code, _) in _ELEMENTS.items()}


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a file."""

    key: str
    dtype: ElementType
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return prod(self.shape) * self.element_bytes

    @property
    def element_bytes(self) -> int:
        return _ELEMENTS[self.dtype][1]


def encode_header(entries: Sequence[Entry], *, metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes before the tensors, which follow in the order of `entries` without gaps.

    Wider elements must come first: then each tensor starts at a multiple of its element size, as readers
    that map the file need.
    """
    widths = [entry.element_bytes for entry in entries]
    assert widths == sorted(widths, reverse=True)
    fields: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    offset = 0
    for entry in entries:
        end = offset + entry.size_bytes
        fields[entry.key] = {
            "dtype": _ELEMENTS[entry.dtype][0],
            "shape": entry.shape,
            "data_offsets": (offset, end),
        }
        offset = end
    header = json.dumps(fields, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header


def decode_header(stream: BinaryIO, *, size_bytes: int) -> tuple[Entry, ...]:
    """The tensors of a file of `size_bytes`. Raises CorruptCheckpointError, also where keys repeat."""
    stream.seek(0)
    length = int.from_bytes(stream.read(8), "little")
    if length > min(_MAX_HEADER_BYTES, size_bytes - 8):
        raise _corrupt("its header is longer than the file or the format allows")
    try:
        fields = json.loads(stream.read(length), object_pairs_hook=without_repeats)
        entries = tuple(
            _entry(key, field=field, data_bytes=size_bytes - 8 - length) for key, field in fields.items()
        )
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise _corrupt(f"its header is not a safetensors header ({error})") from error
    return entries


def _entry(key: str, *, field: dict[str, Any], data_bytes: int) -> Entry:
    entry = Entry(key, _NAMES[field["dtype"]], tuple(int(length) for length in field["shape"]))
    begin, end = field["data_offsets"]
    if not 0 <= begin <= end <= data_bytes or end - begin != entry.size_bytes:
        raise ValueError(f"{key} lies outside the file or does not fill its place")
    return entry


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The dict of a JSON object's pairs; ValueError where a key stands twice, and readers might disagree."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key stands twice")
    return fields


def _corrupt(message: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        message, help="move its folder aside to go on from the step before, or restore it from a copy"
    )
