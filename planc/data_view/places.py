"""The places of documents and rows, by line, for findings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from planc.data_view.look import Look

PLACE = re.compile(r"(\S+) at byte (\d+)")
_MAX_PLACES = 3
_COUNTED_BYTES = 1 << 22


class _Placed(Protocol):
    @property
    def origin(self) -> str: ...


def places(seen: Look, documents: Sequence[_Placed]) -> str:
    """The first documents' places, and the number of the others."""
    base = seen.part.wanted.base
    named = ", ".join(located(document.origin, base=base) for document in documents[:_MAX_PLACES])
    return f"{named} and {len(documents) - _MAX_PLACES} more" if len(documents) > _MAX_PLACES else named


def located(text: str, *, base: Path) -> str:
    """The text with `file:line` in place of the byte at which a line starts, which takes counting lines."""
    return PLACE.sub(lambda match: f"{match[1]}:{_line(base / match[1], int(match[2]))}", text)


def _line(path: Path, offset: int) -> int:
    number = 1
    with open(path, "rb") as file:
        while offset > 0:
            part = file.read(min(offset, _COUNTED_BYTES))
            if not part:
                break
            number += part.count(b"\n")
            offset -= len(part)
    return number
