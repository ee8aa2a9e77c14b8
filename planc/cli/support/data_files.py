"""Data as the command line names it: files by a glob, a directory, or Python's standard library."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from planc.cli.support.exits import UsageError
from planc.record import record

_STDLIB = "python_stdlib"
_TEXTS = (".txt", ".md")
_LINES = (".jsonl", ".json")
_TABLES = (".parquet", ".arrow")
_MAX_LINE = 16 * 2**20
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
    suffixes = _LINES if is_chat else (*_LINES, *_TABLES, *_TEXTS)
    for suffix in suffixes:
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
    suffix = Path(text).suffix
    known = _LINES if is_chat else (*_LINES, *_TABLES, *_TEXTS)
    if suffix not in known:
        raise UsageError(f"`{text}` ends in none of {', '.join(known)}: name files such as data/*{known[0]}")
    written = Path(os.path.relpath(text, folder)).as_posix()
    call = _call(written, suffix, is_chat=is_chat, first=paths[0] if paths else None)
    return DataFiles(call, len(paths), sum(path.stat().st_size for path in paths))


def default_data_of(directory: Path, *, is_chat: bool) -> str:
    """A glob of the files of a directory. UsageError without any that planc reads."""
    for suffix in _LINES if is_chat else (*_LINES, *_TABLES, *_TEXTS):
        if any(directory.glob(f"*{suffix}")):
            return str(directory / f"*{suffix}")
    wanted = _LINES if is_chat else (*_LINES, *_TABLES, *_TEXTS)
    raise UsageError(f"{directory} has no files that end in {', '.join(wanted)}")


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
    if suffix in _TABLES:
        return f'hf_dataset("{written}")'
    name, usual = ("chat", _CHAT_FIELDS) if is_chat else ("jsonl", _TEXT_FIELDS)
    field = _field(first, usual, is_chat=is_chat) if first is not None else usual[0]
    named = "" if field == usual[0] else f', field = "{field}"'
    return f'{name}("{written}"{named})'


def _field(path: Path, usual: tuple[str, ...], *, is_chat: bool) -> str:
    """The key of a document's text, or of its messages, by the first line. UsageError without one."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.readline(_MAX_LINE))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: the first line is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{path}: the first line is not an object")
    for key in usual:
        if isinstance(found.get(key), list if is_chat else str):
            return key
    keys = ", ".join(f"`{key}`" for key in found) or "none"
    if not is_chat and isinstance(found.get(_CHAT_FIELDS[0]), list):
        raise UsageError(f"{path} holds chats: pass --for chats")
    raise UsageError(f"{path}: {' or '.join(f'`{key}`' for key in usual)} is not among its keys: {keys}")
