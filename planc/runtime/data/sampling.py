"""A sample of a source: the beginning of its files, and rows at places spread over them."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from planc.runtime.data.arrow_rows import arrow_rows, num_rows
from planc.runtime.data.bad_documents import BadDocuments
from planc.runtime.data.content import Content
from planc.runtime.data.json_rows import MAX_LINE_BYTES, is_list, json_row, json_rows
from planc.tables import plural

Row = tuple[str, dict[str, Any]]
Item = TypeVar("Item")

_MAX_FILES = 16
_END_BYTES = 1 << 14
_MAX_TEXT_BYTES = 1 << 20
"""The size of a text file, which is one document, at most."""


@dataclass(slots=True)
class Sampling:
    """Limits on how much of a source is read, and the amount read."""

    max_rows: int = 400
    """The number of rows from the beginning of all files."""
    max_bytes: int = 1 << 20
    """The number of bytes from the beginning of all files."""
    num_places: int = 10
    rows_at_place: int = 8
    num_read_bytes: float = 0
    """Bytes of the files that hold what was read."""
    num_bytes: float = 0
    """Bytes of all files; infinite if unknown."""
    num_files: int = 0
    has_places: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether all rows were read."""
        return self.num_read_bytes >= self.num_bytes

    def files(self, files: Sequence[Item]) -> list[Item]:
        """Some of the files, spread over all."""
        self.num_files += len(files)
        if len(files) <= _MAX_FILES:
            return list(files)
        return [files[place * len(files) // _MAX_FILES] for place in range(_MAX_FILES)]

    def leave_out(self, path: Path) -> None:
        """Count a file that is not read."""
        self.num_bytes += os.path.getsize(path)

    def __str__(self) -> str:
        if self.is_whole:
            return f"all rows of {plural(self.num_files, 'file')}" if self.num_files else "all rows"
        places = f", and rows at {self.num_places} places after it" if self.has_places else ""
        files = f" of {plural(min(self.num_files, _MAX_FILES), 'file')}" if self.num_files else ""
        some = f" (of {self.num_files:_})" if self.num_files > _MAX_FILES else ""
        return f"the beginning{files}{some}{places}"

    def text(self, stream: io.BufferedReader, *, path: Path) -> tuple[bytes, bool]:
        """A text file's content, or its beginning up to a whole character; and whether that is all."""
        size = os.path.getsize(path)
        content = stream.read(_MAX_TEXT_BYTES + 1)
        self.num_bytes += size
        if len(content) <= _MAX_TEXT_BYTES:
            self.num_read_bytes += size
            return content, True
        self.num_read_bytes += min(size, _MAX_TEXT_BYTES)
        # The bytes of a character that is cut are at most three.
        content = content[:_MAX_TEXT_BYTES]
        cut = next((at for at in range(1, 4) if content[-at] >= 0xC0), 0)
        return content[:-cut] if cut else content, False

    def rows(self, content: Content, path: Path, *, name: str, bad: BadDocuments) -> Iterator[Row]:
        """Some rows of a file of JSON, in its order."""
        size = os.path.getsize(path)
        self.num_bytes += size
        is_lines, stream = not is_list(content), content.stream
        for number, row in enumerate(json_rows(content, name=name, bad=bad), start=1):
            yield row
            if number >= self._share(self.max_rows) or stream.tell() >= self._share(self.max_bytes):
                break
        else:
            self.num_read_bytes += size
            return
        if not content.can_seek:
            # How much of the file holds the rows so far is unknown.
            self.num_bytes = math.inf
            return
        self.num_read_bytes += stream.tell()
        if is_lines:
            yield from self._lines_at_places(stream, name=name, size=size, bad=bad)

    def _lines_at_places(
        self, stream: io.BufferedReader, *, name: str, size: int, bad: BadDocuments
    ) -> Iterator[Row]:
        begin = end = stream.tell()
        places = [begin + (size - begin) * number // self.num_places for number in range(self.num_places)]
        # The end of a file is where a writer was interrupted.
        for number, place in enumerate([*places, size - _END_BYTES]):
            if place <= end:
                continue
            stream.seek(place)
            # The rest of a line that starts before.
            stream.readline(MAX_LINE_BYTES)
            is_last = number == self.num_places
            for _ in range(self.max_rows if is_last else self.rows_at_place):
                offset = stream.tell()
                line = stream.readline(MAX_LINE_BYTES + 1)
                if line.strip():
                    self.has_places = True
                    self.num_read_bytes += len(line)
                    origin = f"{name} at byte {offset}"
                    yield from (
                        (origin, row)
                        for row in bad.usable(json_row, line, origin=origin, offset_bytes=offset)
                    )
            end = stream.tell()

    def table_rows(self, path: Path, *, name: str, table: str) -> Iterator[Row]:
        """The first rows of a file of columns."""
        size, total = os.path.getsize(path), num_rows(path, name=name, table=table)
        self.num_bytes += size
        read = 0
        for row in arrow_rows(path, name=name, table=table):
            yield row
            read += 1
            if read >= self._share(self.max_rows):
                break
        self.num_read_bytes += size * read / max(1, total)

    def first(self, rows: Iterator[Item], *, num_rows: int | None) -> Iterator[Item]:
        """The first rows of some without files, of which there are `num_rows`; None if that is unknown."""
        found = list(islice(rows, self.max_rows))
        is_all = len(found) < self.max_rows
        self.num_read_bytes += len(found)
        self.num_bytes += len(found) if is_all else math.inf if num_rows is None else num_rows
        return iter(found)

    def _share(self, limit: int) -> int:
        """One file's share of a limit."""
        return max(self.rows_at_place, limit // max(1, min(self.num_files, _MAX_FILES)))
