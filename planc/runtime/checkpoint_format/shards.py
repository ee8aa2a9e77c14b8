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

from planc.runtime.checkpoint_format.errors import CorruptCheckpointError
from planc.runtime.checkpoint_format.manifest import ElementType
from planc.strict_json import loads

_MAX_HEADER_BYTES = 100_000_000
"""As in the safetensors library, so a damaged length can't request all of memory."""

_MAX_NUMBER = 2**64
"""The library reads lengths as unsigned numbers of 64 bits."""
_MAX_ELEMENTS = 2**60
"""It counts elements and their bits in 64 bits too, in any order of the dims."""

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
    """The tensors of a file of `size_bytes`, in the header's order.

    Raises CorruptCheckpointError for everything that the safetensors library rejects: repeated keys, tensors
    that overlap, leave bytes between or after them, or don't have the length of their shape and dtype.
    """
    stream.seek(0)
    length = int.from_bytes(stream.read(8), "little")
    if length > min(_MAX_HEADER_BYTES, size_bytes - 8):
        raise _corrupt("its header is longer than the file or the format allows")
    text = stream.read(length)
    try:
        if not text.startswith(b"{"):
            raise ValueError("it does not begin with a brace")
        fields = loads(text.decode())
        _require_metadata(fields.pop("__metadata__", {}))
        places = {_entry(key, field=field): _place(field) for key, field in fields.items()}
        _require_filled(places, data_bytes=size_bytes - 8 - length)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise _corrupt(f"its header is not a safetensors header ({error})") from error
    return tuple(places)


def _entry(key: str, *, field: dict[str, Any]) -> Entry:
    if field.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{key} does not have the fields dtype, shape and data_offsets")
    shape = tuple(map(_number, field["shape"]))
    if prod(length for length in shape if length) > _MAX_ELEMENTS:
        raise ValueError(f"{key} has more elements than can be counted")
    return Entry(key, _NAMES[field["dtype"]], shape)


def _place(field: dict[str, Any]) -> tuple[int, int]:
    begin, end = map(_number, field["data_offsets"])
    return begin, end


def _number(value: object) -> int:
    # A bool is an int in Python, but not a number in JSON.
    if type(value) is not int or not 0 <= value < _MAX_NUMBER:
        raise ValueError(f"{str(value)[:40]} is not a length")
    return value


def _require_metadata(metadata: dict[str, Any]) -> None:
    if not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("__metadata__ holds more than text")


def _require_filled(places: Mapping[Entry, tuple[int, int]], *, data_bytes: int) -> None:
    """ValueError unless the tensors fill the bytes after the header, without gaps or overlaps."""
    filled = 0
    for entry, (begin, end) in sorted(places.items(), key=lambda one: one[1]):
        if begin != filled:
            what = "overlaps the tensor before it" if begin < filled else "leaves bytes unused before it"
            raise ValueError(f"{entry.key} {what}")
        if end - begin != entry.size_bytes or end > data_bytes:
            raise ValueError(
                f"{entry.key} is outside the file, or its length does not match its shape and dtype"
            )
        filled = end
    if filled != data_bytes:
        raise ValueError(f"{data_bytes - filled} bytes belong to no tensor")


def _corrupt(message: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        message, help="move its directory aside to resume from an earlier step, or restore it from a backup"
    )
