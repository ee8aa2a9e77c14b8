"""Data as the command line names it: files by a glob, a directory, or Python's standard library."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from planc.cli.support.exits import UsageError
from planc.data_sources.globs import without_compression
from planc.record import record
from planc.runtime.data.errors import DataError
from planc.runtime.data.records import file_records

_STDLIB = "python_stdlib"
_TEXTS = (".txt", ".md")
_LINES = (".jsonl", ".json")
_TABLES = (".parquet", ".arrow")
_TEXT_FIELDS = ("text", "content")
_CHAT_FIELDS = ("messages", "conversations")


@record
class DataFiles:
    """The call of a source as a plan writes it, the number of files now, and their size."""

    call: str
    num_files: int
    num_bytes: int


def default_data(folder: Path, *, is_chat: bool) -> str:
    """The glob of the files in `data/` that planc reads, or where to put some."""
    for suffix in _known(is_chat=is_chat):
        if any((folder / "data").glob(f"*{suffix}")):
            return str(folder / "data" / f"*{suffix}")
    return str(folder / "data" / f"*{_LINES[0]}")


def data_files(text: str, *, folder: Path, is_chat: bool) -> DataFiles:
    """The source of these files for a plan in `folder`. UsageError for files that planc can't read.

    A directory is that of its files of one suffix.
    """
    if text.removesuffix("()") == _STDLIB:
        if is_chat:
            raise UsageError(f"{_STDLIB} has no chats: name JSON-lines files with messages")
        return DataFiles(f"{_STDLIB}()", 0, 0)
    if '"' in text or "\n" in text:
        raise UsageError(f"`{text}`: a plan can't write this path")
    if Path(text).is_dir():
        text = default_data_of(Path(text), is_chat=is_chat)
    paths = [*_matches(text)]
    suffix, known = Path(without_compression(text)).suffix, _known(is_chat=is_chat)
    if suffix not in known:
        raise UsageError(f"`{text}` ends in none of {', '.join(known)}: name files such as data/*{known[0]}")
    written = Path(os.path.relpath(text, folder)).as_posix()
    call = _call(written, suffix, is_chat=is_chat, first=paths[0] if paths else None)
    return DataFiles(call, len(paths), sum(path.stat().st_size for path in paths))


def default_data_of(directory: Path, *, is_chat: bool) -> str:
    """A glob of the files of a directory. UsageError without any that planc reads."""
    for suffix in _known(is_chat=is_chat):
        if any(directory.glob(f"*{suffix}")):
            return str(directory / f"*{suffix}")
    raise UsageError(f"{directory} has no files that end in {', '.join(_known(is_chat=is_chat))}")


def _known(*, is_chat: bool) -> tuple[str, ...]:
    """The suffixes of files that a source reads."""
    return (*_LINES, *_TABLES) if is_chat else (*_LINES, *_TABLES, *_TEXTS)


def _matches(pattern: str) -> Iterator[Path]:
    path = Path(pattern)
    if any(character in pattern for character in "*?["):
        anchor = Path(path.anchor) if path.is_absolute() else Path()
        parts = path.relative_to(path.anchor) if path.is_absolute() else path
        yield from sorted(one for one in anchor.glob(str(parts)) if one.is_file())
    elif path.is_file():
        yield path


def _call(written: str, suffix: str, *, is_chat: bool, first: Path | None) -> str:
    if suffix in _TEXTS:
        return f'text("{written}")'
    name, usual = ("chat", _CHAT_FIELDS) if is_chat else ("jsonl", _TEXT_FIELDS)
    if suffix in _TABLES and not is_chat:
        name = "hf_dataset"
    field = _field(first, usual, is_chat=is_chat) if first is not None else usual[0]
    named = "" if field == usual[0] else f', field = "{field}"'
    return f'{name}("{written}"{named})'


def _field(path: Path, usual: tuple[str, ...], *, is_chat: bool) -> str:
    """The key of a document's text, or of its messages, by the first row. UsageError without a text."""
    try:
        with contextlib.closing(file_records(path, name=str(path))) as records:
            row = next(records).values
    except DataError as error:
        raise UsageError(f"{error.message}\n{error.help}") from None
    except StopIteration:
        raise UsageError(f"{path} has no rows") from None
    for key in usual:
        if isinstance(row.get(key), list if is_chat else str):
            return key
    if is_chat:
        # Prompts and completions; what else it may be, the reading of rows reports.
        return usual[0]
    keys = ", ".join(f"`{key}`" for key in row) or "none"
    if isinstance(row.get(_CHAT_FIELDS[0]), list):
        raise UsageError(f"{path} holds chats: pass --for chats")
    raise UsageError(f"{path}: {' or '.join(f'`{key}`' for key in usual)} is not among its keys: {keys}")
