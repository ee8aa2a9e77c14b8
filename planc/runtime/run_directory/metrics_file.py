"""Read metrics.jsonl even if it is damaged: sound lines are kept, others counted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from planc.runtime.files.plain_files import TooLargeError, open_to_read
from planc.strict_json import loads

_MAX_LINE_BYTES = 16 * 2**20
"""Enough for a million sample ids."""
_MAX_STEP = 10**18
"""The highest step, as for checkpoints."""
_MAX_FILE_BYTES = 16 * 2**30
"""Enough for ten million fully logged steps; a sparse file of terabytes would take hours."""


@dataclass(frozen=True, slots=True)
class Line:
    """One logged step, and its line in the file, without the newline."""

    step: int
    loss: float
    text: bytes
    has_labels: bool = True
    """If 0, `loss` is the mean of nothing."""


def read_lines(path: Path) -> Iterator[Line | None]:
    """Every line, None for a damaged one; nothing for a missing file. OSError for anything but a plain file.

    A last line that a crash cut short does not count as damage, and is left out.
    """
    try:
        with open_to_read(path) as stream:
            if os.fstat(stream.fileno()).st_size > _MAX_FILE_BYTES:
                raise TooLargeError(path, max_bytes=_MAX_FILE_BYTES)
            yield from _lines(stream)
    except FileNotFoundError:
        return


def sound_lines(path: Path) -> Iterator[Line]:
    """Read as `read_lines` does, without the damaged ones."""
    return (line for line in read_lines(path) if line is not None)


def _lines(stream: BufferedReader) -> Iterator[Line | None]:
    while text := stream.readline(_MAX_LINE_BYTES):
        line = _parsed(text.removesuffix(b"\n"))
        is_too_long = len(text) == _MAX_LINE_BYTES
        if is_too_long:
            _skip_line(stream)
        if line is not None or is_too_long or text.endswith(b"\n"):
            yield line


def _skip_line(stream: BufferedReader) -> None:
    while (rest := stream.readline(_MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
        pass


def _parsed(text: bytes) -> Line | None:
    try:
        fields = loads(text.decode())
        step, loss = fields["step"], float(fields["loss"])
    except (ValueError, TypeError, KeyError):
        return None
    has_labels = fields.get("labels") != 0
    return Line(step, loss, text, has_labels) if type(step) is int and 0 < step < _MAX_STEP else None
