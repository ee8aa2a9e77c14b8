"""Rows in JSON: one object a line, or a file that is one list of objects. Read in parts, never whole."""

from __future__ import annotations

import codecs
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from planc.runtime.data.bad_documents import BadDocuments
from planc.runtime.data.content import Content
from planc.runtime.data.errors import DataError

MAX_LINE_BYTES = 256 * 2**20
"""A file without line ends would be read whole, and parsed, before it is rejected. So would an object."""
_PART_BYTES = 1 << 16
_SPACE = " \t\r\n"
_LINES_HELP = "write one JSON object per line"

Row = dict[str, Any]


def json_rows(content: Content, *, name: str, bad: BadDocuments) -> Iterator[tuple[str, Row]]:
    """Each object and its file:line. Any other line is a bad document, unless it is blank."""
    if is_list(content):
        return _elements(content.stream, name=name, bad=bad)
    return lines(content.stream, name=name, bad=bad, offset_bytes=content.start_bytes)


def is_list(content: Content) -> bool:
    """Whether a file that has not been read yet begins a list."""
    return content.stream.peek(_PART_BYTES).lstrip(_SPACE.encode()).startswith(b"[")


def lines(
    stream: io.BufferedReader, *, name: str, bad: BadDocuments, offset_bytes: int = 0
) -> Iterator[tuple[str, Row]]:
    """The object of each line from here on, which is `offset_bytes` into the file; blank lines have none."""
    found = iter(partial(stream.readline, MAX_LINE_BYTES + 1), b"")
    for number, line in enumerate(found, start=1):
        origin = f"{name}:{number}"
        if line.strip():
            for row in bad.usable(json_row, line, origin=origin, offset_bytes=offset_bytes):
                yield origin, row
        offset_bytes += len(line)
        while len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
            line = stream.readline(MAX_LINE_BYTES + 1)
            offset_bytes += len(line)


def json_row(line: bytes, *, origin: str, offset_bytes: int) -> Row:
    """The object of a line, which starts `offset_bytes` into its file. Raises DataError."""
    if len(line) > MAX_LINE_BYTES:
        raise _too_long(origin)
    text = decoded(line, origin=origin, offset_bytes=offset_bytes)
    try:
        row = parsed(text, origin=origin)
    except DataError:
        raise
    except (ValueError, RecursionError) as error:
        raise DataError(f"{origin} is not JSON: {error}", help=_LINES_HELP) from error
    return _object(row, origin=origin)


def parsed(text: str, *, origin: str) -> Any:
    """The value of a JSON text. Raises DataError for a key that an object in it has twice, and ValueError."""
    repeats = _Repeats()
    value = json.loads(text, object_pairs_hook=repeats)
    repeats.require_none(origin=origin)
    return value


@dataclass(slots=True)
class _Repeats:
    """The fields of a JSON object from its pairs. `key` is one that some object has twice.

    Python would take the last of them, and other readers the first.
    """

    key: str | None = None

    def __call__(self, pairs: list[tuple[str, Any]]) -> Row:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            names = [name for name, _ in pairs]
            self.key = next(name for name in names if names.count(name) > 1)
        return fields

    def require_none(self, *, origin: str) -> None:
        if self.key is not None:
            raise DataError(
                f"{origin} has the key {json.dumps(self.key[:100])} twice in one object",
                help="keep one of them",
            )


def _object(row: object, repeats: _Repeats | None = None, *, origin: str) -> Row:
    if not isinstance(row, dict):
        raise DataError(f"{origin} is not a JSON object", help=_LINES_HELP)
    if repeats is not None:
        repeats.require_none(origin=origin)
    return row


def _too_long(origin: str) -> DataError:
    return DataError(
        f"{origin} is longer than {MAX_LINE_BYTES // 2**20} MiB",
        help="write one JSON object per line, and a long text as several",
    )


def decoded(content: bytes, *, origin: str, offset_bytes: int) -> str:
    """The text of `content`, which starts `offset_bytes` into its file. Raises DataError unless UTF-8."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_utf8(origin, offset_bytes + error.start, error) from error


def _not_utf8(origin: str, place: int, error: UnicodeDecodeError) -> DataError:
    return DataError(
        f"{origin} is not UTF-8 at byte {place}: {error.reason}",
        help="convert the file to UTF-8, for example with iconv",
    )


class _Text:
    """The text of a file that holds a list, of which no more than one element is in memory."""

    def __init__(self, stream: io.BufferedReader, *, name: str) -> None:
        self._stream, self._name = stream, name
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._num_bytes = 0
        self.text, self.place, self.line = "", 0, 1
        self.is_whole = False

    @property
    def origin(self) -> str:
        return f"{self._name}:{self.line}"

    def skip(self) -> str:
        """The next character after white space; empty at the end of the file."""
        while True:
            while self.place < len(self.text):
                sign = self.text[self.place]
                if sign not in _SPACE:
                    return sign
                self.line += sign == "\n"
                self.place += 1
            if not self.more():
                return ""

    def more(self) -> bool:
        """Read on, as much again as is held; False at the end of the file. Raises DataError."""
        if self.is_whole:
            return False
        self.text, self.place = self.text[self.place :], 0
        part = self._stream.read(max(_PART_BYTES, len(self.text)))
        self.is_whole = not part
        try:
            self.text += self._decoder.decode(part, final=self.is_whole)
        except UnicodeDecodeError as error:
            raise _not_utf8(self._name, self._num_bytes + error.start, error) from error
        self._num_bytes += len(part)
        return not self.is_whole

    def value(self) -> tuple[Any, _Repeats]:
        """The JSON value here, and the keys that it repeats. Raises DataError."""
        while True:
            repeats = _Repeats()
            try:
                value, end = json.JSONDecoder(object_pairs_hook=repeats).raw_decode(self.text, self.place)
                # A number may continue after the part that is held.
                if end < len(self.text) or self.is_whole:
                    break
            except (ValueError, RecursionError) as error:
                if self.is_whole or isinstance(error, RecursionError):
                    reason = getattr(error, "msg", str(error))
                    raise DataError(
                        f"{self.origin} is not JSON: {reason}",
                        help="write one list of JSON objects, or one JSON object per line",
                    ) from error
            if len(self.text) - self.place > MAX_LINE_BYTES:
                raise _too_long(self.origin)
            self.more()
        self.line += self.text.count("\n", self.place, end)
        self.place = end
        return value, repeats


def _elements(stream: io.BufferedReader, *, name: str, bad: BadDocuments) -> Iterator[tuple[str, Row]]:
    """The objects of a list. A fault of its JSON ends the reading, as the next place is unknown."""
    text = _Text(stream, name=name)
    text.skip()
    text.place += 1
    is_first = True
    while (sign := text.skip()) != "]":
        if not is_first and sign != ",":
            wanted = "the list has no end" if not sign else "expected `,` or `]` after an object"
            raise DataError(f"{text.origin} is not JSON: {wanted}", help="write one list of JSON objects")
        if not is_first:
            text.place += 1
            text.skip()
        is_first = False
        origin = text.origin
        for row in bad.usable(_object, *text.value(), origin=origin):
            yield origin, row
    text.place += 1
    if text.skip():
        raise DataError(
            f"{text.origin} has text after the end of its list",
            help="write one list of JSON objects, or one JSON object per line",
        )
