"""Data as the command line names it: files by a glob, a directory, or Python's standard library."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from planc.cli.support.exits import UsageError
from planc.data_sources.globs import without_compression
from planc.first_plan.practice import DataSize
from planc.first_plan.purpose import Purpose, Rows
from planc.record import record
from planc.runtime.data.errors import DataError
from planc.runtime.data.records import file_records
from planc.syntax.write import call, quoted

_STDLIB = "python_stdlib"
_TEXTS = (".txt", ".md")
_LINES = (".jsonl", ".json")
_TABLES = (".parquet", ".arrow")
_TEXT_FIELDS = ("text", "content")
_CHAT_FIELDS = ("messages", "conversations")
_KEYS: Mapping[Rows, Mapping[str, tuple[str, ...]]] = {
    Rows.PREFERENCES: {},
    Rows.LABELED_TEXTS: {
        "field": (*_TEXT_FIELDS, "sentence", "review", "premise", "sentence1", "question1"),
        "pair": ("hypothesis", "sentence2", "question2"),
        "label": ("label", "labels", "class"),
    },
    Rows.LABELED_WORDS: {"field": ("tokens", "words"), "label": ("labels", "label", "ner_tags", "tags")},
    Rows.MATCHED: {
        "query": ("query", "question", "anchor", "sentence1"),
        "positive": ("positive", "answer", "passage", "sentence2"),
    },
    Rows.MAPPED: {
        "input": ("input", "article", "document", "dialogue", "source", "text", "question"),
        "target": ("target", "summary", "highlights", "output", "answer"),
    },
    Rows.IMAGE_CHATS: {"image": ("image", "images")},
}
"""The keys that each argument of a source usually names, by the kind of rows."""
_UNSAID = {"field": "text", "label": "label", "query": "query", "positive": "positive"}
_UNSAID |= {"input": "input", "target": "target", "image": "image"}
"""The keys that a source reads without the argument."""
_OPTIONAL = ("pair",)
_READ = {Rows.MATCHED: (), Rows.MAPPED: (), Rows.PREFERENCES: ("prompt", "chosen", "rejected")}
"""The kinds of rows that refuse other keys, unless they are ignored, with the keys that they always read."""
_MOST_ROWS = 20_000
"""Rows that are counted; more make no step smaller."""
_MOST_LABELED = 200_000
_MOST_BYTES = 2**30
"""Bytes of files whose rows are counted."""


@record
class DataFiles:
    """The call of a source as a plan writes it, the files now, their size, and their classes."""

    call: str
    paths: tuple[Path, ...] = ()
    size: DataSize = DataSize()
    has_rows: bool = False
    """Whether the length of a run is counted in rows."""
    label: str = ""
    """The key of a row's classes; empty for rows without."""
    is_rendered: bool = False
    """Whether a chat template renders the rows."""
    ignored: tuple[str, ...] = ()
    """The keys of texts in the first row that the source ignores."""
    num_classes: int = 0
    class_names: tuple[str, ...] = ()

    @property
    def num_files(self) -> int:
        return len(self.paths)


def default_data(folder: Path, *, purpose: Purpose) -> str:
    """The glob of the files in `data/` that planc reads, or where to put some."""
    for suffix in _known(purpose.rows):
        if any((folder / "data").glob(f"*{suffix}")):
            return str(folder / "data" / f"*{suffix}")
    return str(folder / "data" / f"*{_LINES[0]}")


def data_files(text: str, *, folder: Path, purpose: Purpose) -> DataFiles:
    """The source of these files for a plan in `folder`. UsageError for files that planc can't read.

    A directory is that of its files of one suffix.
    """
    rows = purpose.rows
    if text.removesuffix("()") == _STDLIB:
        if rows is Rows.CHATS:
            raise UsageError(f"{_STDLIB} has no chats: name JSON-lines files with messages")
        if rows is not Rows.TEXTS:
            raise UsageError(f"{_STDLIB} has texts alone: name JSON-lines files for `{rows.call}(...)`")
        return DataFiles(f"{_STDLIB}()")
    if '"' in text or "\n" in text:
        raise UsageError(f"`{text}`: a plan can't write this path")
    if Path(text).is_dir():
        text = default_data_of(Path(text), rows)
    paths = tuple(_matches(text))
    suffix, known = Path(without_compression(text)).suffix, _known(rows)
    if suffix not in known:
        raise UsageError(f"`{text}` ends in none of {', '.join(known)}: name files such as data/*{known[0]}")
    written = quoted(Path(os.path.relpath(text, folder)).as_posix())
    size = DataSize(sum(path.stat().st_size for path in paths))
    if rows not in _KEYS:
        call_of_texts = _texts(written, suffix, rows, paths)
        return DataFiles(call_of_texts, paths, size, is_rendered=rows.has_messages)
    row = _first(paths[0]) if paths else {}
    keys, others = _keys(paths[0], row, rows) if paths else ({}, ())
    arguments = [f"{name} = {quoted(key)}" for name, key in keys.items() if key != _UNSAID.get(name)]
    is_rendered = rows.has_messages and not isinstance(row.get("chosen"), str)
    if rows is Rows.PREFERENCES and not is_rendered:
        arguments.append("template = none")
    ignored = others if rows in _READ else ()
    if ignored:
        arguments.append(f"ignore = [{', '.join(map(quoted, ignored))}]")
    if "label" in _KEYS[rows] and not paths:
        raise UsageError("the classes are those of the rows: name files that are there with --data")
    source = call(rows.call, [written, *arguments])
    texts = tuple(key for key in ignored if isinstance(row[key], str | list))
    return DataFiles(source, paths, size, True, keys.get("label", ""), is_rendered, texts)


def counted(data: DataFiles) -> DataFiles:
    """The files with the number of their rows and their classes, up to a limit of rows.

    UsageError for labels that no classes follow from.
    """
    if data.label:
        return _labeled(data)
    if not data.has_rows:
        return data
    is_large = data.size.num_bytes > _MOST_BYTES
    num_rows = _MOST_ROWS if is_large else sum(1 for _ in islice(_rows(data.paths), _MOST_ROWS))
    return replace(data, size=replace(data.size, num_rows=num_rows))


def default_data_of(directory: Path, rows: Rows) -> str:
    """A glob of the files of a directory. UsageError without any that planc reads."""
    for suffix in _known(rows):
        if any(directory.glob(f"*{suffix}")):
            return str(directory / f"*{suffix}")
    raise UsageError(f"{directory} has no files that end in {', '.join(_known(rows))}")


def _known(rows: Rows) -> tuple[str, ...]:
    """The suffixes of files that a source reads."""
    return (*_LINES, *_TABLES, *_TEXTS) if rows is Rows.TEXTS else (*_LINES, *_TABLES)


def _matches(pattern: str) -> Iterator[Path]:
    path = Path(pattern)
    if any(character in pattern for character in "*?["):
        anchor = Path(path.anchor) if path.is_absolute() else Path()
        parts = path.relative_to(path.anchor) if path.is_absolute() else path
        yield from sorted(one for one in anchor.glob(str(parts)) if one.is_file())
    elif path.is_file():
        yield path


def _texts(written: str, suffix: str, rows: Rows, paths: Sequence[Path]) -> str:
    """The call for texts or conversations, which are under one key."""
    if suffix in _TEXTS:
        return f"text({written})"
    is_chat = rows is Rows.CHATS
    usual = _CHAT_FIELDS if is_chat else _TEXT_FIELDS
    field = _field(paths[0], usual, is_chat=is_chat) if paths else usual[0]
    named = [] if field == usual[0] else [f"field = {quoted(field)}"]
    return call("hf_dataset" if suffix in _TABLES and not is_chat else rows.call, [written, *named])


def _rows(paths: Sequence[Path]) -> Iterator[Mapping[str, object]]:
    """The rows of files. UsageError for files that can't be read."""
    try:
        for path in paths:
            with contextlib.closing(file_records(path, name=str(path))) as records:
                yield from (record.values for record in records)
    except DataError as error:
        raise UsageError(f"{error.message}\n{error.help}") from None


def _first(path: Path) -> Mapping[str, object]:
    row = next(_rows([path]), None)
    if row is None:
        raise UsageError(f"{path} has no rows")
    return row


def _listed(row: Mapping[str, object]) -> str:
    return ", ".join(f"`{key}`" for key in row) or "none"


def _field(path: Path, usual: tuple[str, ...], *, is_chat: bool) -> str:
    """The key of a document's text, or of its messages, by the first row. UsageError without a text."""
    row = _first(path)
    for key in usual:
        if isinstance(row.get(key), list if is_chat else str):
            return key
    if is_chat:
        # Prompts and completions; what else it may be, the reading of rows reports.
        return usual[0]
    if isinstance(row.get(_CHAT_FIELDS[0]), list):
        raise UsageError(f"{path} holds chats: pass --for chats")
    raise UsageError(
        f"{path}: {' or '.join(f'`{key}`' for key in usual)} is not among its keys: {_listed(row)}"
    )


def _keys(path: Path, row: Mapping[str, object], rows: Rows) -> tuple[dict[str, str], tuple[str, ...]]:
    """The key of each argument, by the first row, and the row's other keys. UsageError without one."""
    keys: dict[str, str] = {}
    for name, usual in _KEYS[rows].items():
        key = next((key for key in usual if key in row and key not in keys.values()), None)
        if key is not None:
            keys[name] = key
        elif name not in _OPTIONAL:
            named = " or ".join(f"`{key}`" for key in usual)
            raise UsageError(
                f"{path}: no key for `{name}` of `{rows.call}(...)`: {named} is not among its keys: "
                f"{_listed(row)}"
            )
    read = (*keys.values(), *_READ.get(rows, ()))
    return keys, tuple(key for key in row if key not in read)


def _labeled(data: DataFiles) -> DataFiles:
    labels: set[object] = set()
    num_rows = 0
    for row in islice(_rows(data.paths), _MOST_LABELED):
        num_rows += 1
        label = row.get(data.label)
        labels.update(label if isinstance(label, list) else [label])
    size, path = replace(data.size, num_rows=num_rows), data.paths[0]
    has_names = all(isinstance(label, str) for label in labels)
    if labels == {0} or (has_names and len(labels) == 1):
        raise UsageError(f"{path}: all rows have the class `{labels.pop()}` under `{data.label}`")
    if has_names:
        names = tuple(sorted(str(label) for label in labels))
        return replace(data, size=size, num_classes=len(names), class_names=names)
    numbers = [label for label in labels if isinstance(label, int) and not isinstance(label, bool)]
    if len(numbers) < len(labels) or min(numbers) < 0:
        odd = next(label for label in labels if label not in numbers or label == min(numbers))
        raise UsageError(
            f"{path}: the labels under `{data.label}` are neither all names nor all numbers from 0 on: "
            f"`{odd}`"
        )
    return replace(data, size=size, num_classes=max(numbers) + 1)
