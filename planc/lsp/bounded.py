"""Messages of a bounded size: a length is a number that anybody may write."""

from __future__ import annotations

import json
from typing import IO

MAX_MESSAGE_BYTES = 1 << 26
"""A plan has at most a few MiB; editors send it whole."""
_MAX_SKIPPED_BYTES = 1 << 32
_PART_BYTES = 1 << 16
OVERSIZED = "planc/oversized"
"""The method of a request in place of a message that is too long. Its answer is an error."""


class BoundedReader:
    """An editor's messages, of which one that is too long is skipped."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def readline(self) -> bytes:
        return self._stream.readline(_PART_BYTES)

    def read(self, size: int) -> bytes:
        """A body; a request to OVERSIZED in place of one that is too long.

        No body follows a length that no message has: it would be waited for without an end.
        """
        if size <= MAX_MESSAGE_BYTES:
            return self._stream.read(size)
        left = size if size <= _MAX_SKIPPED_BYTES else 0
        while left and (part := self._stream.read(min(left, _PART_BYTES))):
            left -= len(part)
        request = {"jsonrpc": "2.0", "id": OVERSIZED, "method": OVERSIZED, "params": {"size": size}}
        return json.dumps(request).encode()
