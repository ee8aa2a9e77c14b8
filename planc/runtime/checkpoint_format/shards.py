"""The header of a safetensors file, written without torch.

A file is 8 bytes of header length (little-endian), the header as JSON, then the tensors' bytes. The
format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from planc.runtime.checkpoint_format.records import ElementType

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
        return element_bytes(self.dtype)


def element_bytes(dtype: ElementType) -> int:
    return _ELEMENTS[dtype][1]


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
