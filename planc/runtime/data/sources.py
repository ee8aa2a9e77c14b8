"""Sources of text: plain files, JSON Lines, or the running interpreter's own sources."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import assert_never

from planc.data_sources.globs import without_file
from planc.runtime.data.bad_documents import BadDocuments
from planc.runtime.data.errors import DataError
from planc.runtime.data.files import open_regular_file, read_regular_file
from planc.runtime.ranks.reads import Reads

LONE_SURROGATE_HELP = "write characters beyond U+FFFF as a whole surrogate pair, or as themselves"
MAX_LINE_BYTES = 256 * 2**20
"""For JSON Lines: a file without line ends would be read whole, and parsed, before it is rejected."""


@dataclass(frozen=True, slots=True)
class TextSource:
    """UTF-8 files, one document each. `patterns` are globs relative to a base directory (`**` any depth)."""

    patterns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JsonLinesSource:
    """Files of one JSON object per line; each line's `field` is a document."""

    patterns: tuple[str, ...]
    field: str = "text"


@dataclass(frozen=True, slots=True)
class PythonStdlibSource:
    """The `*.py` files of the running interpreter's standard library: real text on every machine."""


PlainSource = TextSource | JsonLinesSource | PythonStdlibSource
"""Sources whose text is that of the file."""


@dataclass(frozen=True, slots=True)
class Document:
    """One text and where it came from, a file or file:line."""

    origin: str
    text: str
    num_bytes: int
    """Length of the text in UTF-8."""


def documents(
    source: PlainSource, *, base: Path, reads: Reads | None = None, bad: BadDocuments | None = None
) -> Iterator[Document]:
    """The documents of a source, always in the same order. Raises DataError that names the bad file."""
    bad = bad or BadDocuments()
    match source:
        case TextSource(patterns):
            return _text_documents(patterns, base=base, reads=reads, bad=bad)
        case JsonLinesSource(patterns, field):
            return _json_documents(patterns, field=field, base=base, reads=reads, bad=bad)
        case PythonStdlibSource():
            return _stdlib_documents(_stdlib_root(), reads=reads)
        case _:
            assert_never(source)


def matched_files(patterns: tuple[str, ...], *, base: Path) -> tuple[str, ...]:
    """Paths relative to `base`: pattern by pattern, sorted within one, each file once.

    Directories are skipped; a pattern that matches nothing else is a DataError.
    """
    files: dict[str, None] = {}
    for pattern in patterns:
        matches = glob.glob(pattern, root_dir=base, recursive=True)
        names = sorted(name for name in matches if not (base / name).is_dir())
        if not names:
            raise DataError(f'pattern "{pattern}" matches no file', help=_no_file_help(pattern, base=base))
        files.update(dict.fromkeys(names))
    return tuple(files)


def _no_file_help(pattern: str, *, base: Path) -> str:
    """Where a pattern starts, and what is there in place of the files."""
    start = f"patterns are relative to {os.path.abspath(base)}"
    found = without_file(pattern, base=base)
    if found is None:
        return start
    there = f"has {found.near or 'no files'}" if found.is_searched else "does not exist"
    return f"{start}; {found.directory} {there}"


def stdlib_files() -> tuple[tuple[str, Path], ...]:
    """The interpreter's own sources, by their path relative to the standard library."""
    root = _stdlib_root()
    return tuple((name, root / name) for name in _stdlib_files(root))


def _stdlib_root() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _text_documents(
    patterns: tuple[str, ...], *, base: Path, reads: Reads | None, bad: BadDocuments
) -> Iterator[Document]:
    for name in matched_files(patterns, base=base):
        content = read_regular_file(base / name, name=name, reads=reads)
        for text in bad.usable(_decoded, content, origin=name, offset_bytes=0):
            yield Document(name, text, len(content))


def _decoded(content: bytes, *, origin: str, offset_bytes: int) -> str:
    """The text of `content`, which starts `offset_bytes` into its file. Raises DataError unless UTF-8."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{origin} is not UTF-8 at byte {offset_bytes + error.start}: {error.reason}",
            help="convert the file to UTF-8, for example with iconv",
        ) from error


def _json_documents(
    patterns: tuple[str, ...], *, field: str, base: Path, reads: Reads | None, bad: BadDocuments
) -> Iterator[Document]:
    for origin, record in json_records(patterns, base=base, reads=reads, bad=bad):
        yield from bad.usable(text_document, record, field=field, origin=origin)


def json_records(
    patterns: tuple[str, ...], *, base: Path, reads: Reads | None, bad: BadDocuments
) -> Iterator[tuple[str, dict[str, object]]]:
    """Each line's object and its file:line. Any other line is a bad document, even an empty one."""
    for name in matched_files(patterns, base=base):
        offset_bytes, content = 0, hashlib.sha256()
        with open_regular_file(base / name, name=name) as file:
            lines = iter(partial(file.readline, MAX_LINE_BYTES + 1), b"")
            for number, line in enumerate(lines, start=1):
                content.update(line)
                origin = f"{name}:{number}"
                for record in bad.usable(_json_record, line, origin=origin, offset_bytes=offset_bytes):
                    yield origin, record
                offset_bytes += len(line)
                while len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
                    line = file.readline(MAX_LINE_BYTES + 1)
                    content.update(line)
                    offset_bytes += len(line)
        if reads is not None:
            reads.add("file", name, content.hexdigest())


def _json_record(line: bytes, *, origin: str, offset_bytes: int) -> dict[str, object]:
    """The object of a line, which starts `offset_bytes` into its file. Raises DataError."""
    if len(line) > MAX_LINE_BYTES:
        raise DataError(
            f"{origin} is longer than {MAX_LINE_BYTES // 2**20} MiB",
            help="write one JSON object per line, and a long text as several",
        )
    try:
        record = json.loads(_decoded(line, origin=origin, offset_bytes=offset_bytes))
    except DataError:
        raise
    except (ValueError, RecursionError) as error:
        raise DataError(f"{origin} is not JSON: {error}", help="write one JSON object per line") from error
    if not isinstance(record, dict):
        raise DataError(f"{origin} is not a JSON object", help="write one JSON object per line")
    return record


def field_of(record: Mapping[str, object], *, field: str, origin: str) -> object:
    """The value of a record's `field`. Raises DataError if it is missing."""
    if field not in record:
        names = ", ".join(record) or "none"
        raise DataError(f'{origin} has no field "{field}"', help=f"name one of its fields: {names}")
    return record[field]


def text_document(record: Mapping[str, object], *, field: str, origin: str) -> Document:
    """The text of a record's field as a document. Raises DataError if it is not a string."""
    text = field_of(record, field=field, origin=origin)
    if not isinstance(text, str):
        raise DataError(f'field "{field}" of {origin} is not a string', help="name a field that holds text")
    return Document(origin, text, num_utf8_bytes(text, origin=origin))


def num_utf8_bytes(text: str, *, origin: str) -> int:
    """Length in UTF-8. Raises DataError for half a surrogate pair: JSON can escape it, UTF-8 has none."""
    try:
        return len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise DataError(
            f"{origin} holds a lone surrogate at character {error.start}",
            help=LONE_SURROGATE_HELP,
        ) from error


_NOT_STDLIB_TEXT = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3", "__pycache__"}
)
"""Skipped directories: installed packages, test suites, and modules that newer versions dropped."""


def _stdlib_documents(root: Path, *, reads: Reads | None) -> Iterator[Document]:
    """Sources below `root` by relative path, without those in another encoding than UTF-8."""
    for name in _stdlib_files(root):
        content = read_regular_file(root / name, name=str(root / name))
        if reads is not None:
            # Machines may have their interpreters in different places.
            reads.add_content("file", name, content)
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError:
            continue
        yield Document(name, text, len(content))


def _stdlib_files(root: Path) -> tuple[str, ...]:
    found: list[str] = []
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in _NOT_STDLIB_TEXT]
        relative = Path(folder).relative_to(root)
        found.extend((relative / name).as_posix() for name in files if name.endswith(".py"))
    return tuple(sorted(found))
