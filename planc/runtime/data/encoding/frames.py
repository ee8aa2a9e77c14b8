"""Messages between the two processes: a header in JSON, and bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import IO, Any

_SIZES = struct.Struct("<QQ")


def write_frame(stream: IO[bytes], header: dict[str, Any], *content: bytes) -> None:
    """Write one message. OSError if nobody reads it."""
    text = json.dumps(header).encode()
    stream.write(_SIZES.pack(len(text), sum(map(len, content))))
    for part in (text, *content):
        stream.write(part)
    stream.flush()


def read_frame(stream: IO[bytes]) -> tuple[dict[str, Any], memoryview] | None:
    """The next message; None if the stream ends before its end."""
    sizes = stream.read(_SIZES.size)
    if len(sizes) < _SIZES.size:
        return None
    header_size, content_size = _SIZES.unpack(sizes)
    text, content = stream.read(header_size), stream.read(content_size)
    if len(text) + len(content) < header_size + content_size:
        return None
    return json.loads(text), memoryview(content)


def parts_of(content: memoryview, sizes: Sequence[int]) -> list[memoryview]:
    """Consecutive parts of a message's bytes."""
    found, start = [], 0
    for size in sizes:
        found.append(content[start : start + size])
        start += size
    return found
