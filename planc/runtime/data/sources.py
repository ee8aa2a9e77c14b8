"""Sources of text: plain files, JSON Lines, or the running interpreter's own sources."""

from __future__ import annotations

import json
import os
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import assert_never

from planc.data_sources import kinds
from planc.runtime.data.bad_documents import BadDocuments
from planc.runtime.data.content import open_content
from planc.runtime.data.errors import DataError
from planc.runtime.data.files import matched_files, read_regular_file
from planc.runtime.data.json_rows import decoded
from planc.runtime.data.records import Record, Rows, files_records, is_table
from planc.runtime.data.sampling import Sampling
from planc.runtime.ranks.reads import Reads
from planc.tables import plural
from planc.vocab import IGNORED_LABEL as IGNORED_LABEL

LONE_SURROGATE_HELP = "write characters beyond U+FFFF as a whole surrogate pair, or as themselves"


PlainSource = kinds.TextSource | kinds.JsonLinesSource | kinds.PythonStdlibSource
"""Sources whose text is that of the file."""


@dataclass(frozen=True, slots=True)
class Document:
    """One text and where it came from, a file or file:line."""

    origin: str
    text: str
    num_bytes: int
    """Length of the text in UTF-8."""
    label: int | None = None
    """The number of its class, if it has one; 0 of a query, and IGNORED_LABEL of its positive."""
    whole: bytes = b""
    """Both texts of a pair, which are held out together."""
    ends: bool = False
    """Whether the end of a document follows its tokens, though it has a label: that of a target does."""
    unread: tuple[str, ...] = ()
    """The keys of other texts that its row has, of several words each; only of a row with a class."""


@dataclass(frozen=True, slots=True)
class TextPair:
    """Two texts with the number of their class, and where they came from."""

    origin: str
    texts: tuple[str, str]
    label: int
    num_bytes: int
    """Length of both in UTF-8."""

    @property
    def content(self) -> bytes:
        """Both texts as JSON."""
        return json.dumps(self.texts).encode()


@dataclass(frozen=True, slots=True)
class Words:
    """The words of a text, each with the number of its class, and where they came from."""

    origin: str
    words: tuple[str, ...]
    classes: tuple[int, ...]
    num_bytes: int
    """Length of the words in UTF-8."""

    @property
    def content(self) -> bytes:
        """The words and their classes as JSON."""
        return json.dumps([self.words, self.classes]).encode()


def documents(
    source: PlainSource,
    *,
    base: Path,
    reads: Reads | None = None,
    bad: BadDocuments | None = None,
    sample: Sampling | None = None,
    rows: Rows = iter,
) -> Iterator[Document]:
    """The documents of a source, always in the same order. Raises DataError that names the bad file."""
    bad = bad or BadDocuments()
    match source:
        case kinds.TextSource(patterns):
            return _text_documents(patterns, base=base, reads=reads, bad=bad, sample=sample)
        case kinds.JsonLinesSource(patterns, field):
            found = tuple((name, base / name) for name in matched_files(patterns, base=base))
            records = files_records(found, reads=reads, bad=bad, only_json=True, sample=sample)
            return text_documents(rows(records), field=field, bad=bad)
        case kinds.PythonStdlibSource():
            return _stdlib_documents(_stdlib_root(), reads=reads, sample=sample)
        case _:
            assert_never(source)


def stdlib_files() -> tuple[tuple[str, Path], ...]:
    """The interpreter's own sources, by their path relative to the standard library."""
    root = _stdlib_root()
    return tuple((name, root / name) for name in _stdlib_files(root))


def _stdlib_root() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _text_documents(
    patterns: tuple[str, ...],
    *,
    base: Path,
    reads: Reads | None,
    bad: BadDocuments,
    sample: Sampling | None,
) -> Iterator[Document]:
    names = matched_files(patterns, base=base)
    chosen = names if sample is None else sample.files(names)
    for name in names:
        if name not in chosen:
            assert sample is not None
            sample.leave_out(base / name)
            continue
        with open_content(base / name, name=name, reads=reads) as file:
            if file.table is not None:
                raise is_table(name, file.table)
            is_all = True
            if sample is None:
                content = file.stream.read()
            else:
                content, is_all = sample.text(file.stream, path=base / name)
        for text in bad.usable(decoded, content, origin=name, offset_bytes=file.start_bytes):
            yield Document(name if is_all else f"{name} (its beginning)", text, len(content))


def text_documents(records: Iterable[Record], *, field: str, bad: BadDocuments) -> Iterator[Document]:
    """The text of each record's field as a document."""
    for origin, values in records:
        yield from bad.usable(text_document, values, field=field, origin=origin)


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


def labeled_document(
    record: Mapping[str, object], *, source: kinds.LabeledSource, origin: str
) -> Document | TextPair:
    """The text of a record, or both of a pair, with its class. Raises DataError without one of them."""
    document = text_document(record, field=source.field, origin=origin)
    label, name = field_of(record, field=source.label, origin=origin), f'"{source.label}" of {origin}'
    if isinstance(label, list):
        help = "one text has one class; for a class of each word, write `task = token_classification(...)`"
        raise DataError(f"{name} is a list", help=help)
    number = _class_of(label, source=source, name=name)
    if source.pair is None:
        read = (source.field, source.label)
        others = (name for name, value in record.items() if name not in read and _is_text(value))
        return replace(document, label=number, unread=tuple(others))
    second = text_document(record, field=source.pair, origin=origin)
    return TextPair(origin, (document.text, second.text), number, document.num_bytes + second.num_bytes)


def _is_text(value: object) -> bool:
    """Whether a value may be a text, and not the name of something."""
    return isinstance(value, str) and " " in value.strip()


def matched_documents(
    record: Mapping[str, object], *, source: kinds.MatchedSource, origin: str
) -> tuple[Document, Document]:
    """The query of a record and its positive. Raises DataError without one of them, and for any other key,
    such as a negative, that the plan does not ignore."""
    return _two_documents(record, (source.query, source.positive), source=source, origin=origin)


def mapped_documents(
    record: Mapping[str, object], *, source: kinds.MappedSource, origin: str
) -> tuple[Document, Document]:
    """The input of a record and its target. Raises DataError as `matched_documents` does."""
    first, target = _two_documents(record, (source.input, source.target), source=source, origin=origin)
    return first, replace(target, ends=True)


def _two_documents(
    record: Mapping[str, object],
    fields: tuple[str, str],
    *,
    source: kinds.MatchedSource | kinds.MappedSource,
    origin: str,
) -> tuple[Document, Document]:
    first, second = (text_document(record, field=field, origin=origin) for field in fields)
    unread = [name for name in record if name not in (*fields, *source.ignore)]
    if unread:
        names = ", ".join(f'"{name}"' for name in unread)
        raise DataError(
            f"{origin} has keys that planc does not read in {source.kind} pairs: {names}",
            help=f"write `ignore = [{names}]` in `{source.kind}(...)` to train without them",
        )
    whole = json.dumps([first.text, second.text]).encode()
    return (
        replace(first, origin=f"{origin} ({fields[0]})", label=0, whole=whole),
        replace(second, origin=f"{origin} ({fields[1]})", label=IGNORED_LABEL, whole=whole),
    )


def labeled_words(record: Mapping[str, object], *, source: kinds.LabeledSource, origin: str) -> Words:
    """The words of a record with their classes. Raises DataError unless there is one of each."""
    words, labels = (field_of(record, field=key, origin=origin) for key in (source.field, source.label))
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        help = "write the words of a text as a list of strings, and their classes as another list"
        raise DataError(f'"{source.field}" of {origin} is not a list of words', help=help)
    if not isinstance(labels, list) or len(labels) != len(words):
        number = plural(len(labels), "class", "classes") if isinstance(labels, list) else "no list of classes"
        raise DataError(
            f'"{source.label}" of {origin} is {number}, for {plural(len(words), "word")}',
            help="write one class for each word",
        )
    if not words:
        raise DataError(f"{origin} has no words", help="remove the row")
    names = (f'class {number} in "{source.label}" of {origin}' for number in range(1, len(words) + 1))
    classes = [_class_of(label, source=source, name=name) for label, name in zip(labels, names, strict=True)]
    num_bytes = sum(num_utf8_bytes(word, origin=origin) for word in words)
    return Words(origin, tuple(words), tuple(classes), num_bytes)


def _class_of(label: object, *, source: kinds.LabeledSource, name: str) -> int:
    """The number of the class that a row's value names. Raises DataError for one that the task lacks."""
    if isinstance(label, str):
        return _number_of(label, source=source, place=name)
    if not isinstance(label, int) or isinstance(label, bool):
        raise DataError(
            f"{name} is not an integer",
            help=f"write the number of its class, from 0 to {source.num_labels - 1}",
        )
    if not 0 <= label < source.num_labels:
        raise DataError(
            f"{name} is {label}, and the task has the classes 0 to {source.num_labels - 1}",
            help="correct the row, or raise `labels` of the task and of the model",
        )
    return label


def _number_of(label: str, *, source: kinds.LabeledSource, place: str) -> int:
    """The number of a class. Raises DataError for a name that the plan does not have."""
    if label in source.names:
        return source.names.index(label)
    if source.names:
        raise DataError(
            f"{place} is {json.dumps(label)}, which is not among `names` of the task",
            help=f"correct the row, or the names: {', '.join(source.names)}",
        )
    help = f"write `names = [{json.dumps(label)}, ...]` in the task: all names, by their numbers"
    if label.isdecimal():
        help = f"write {label} without quotes in the row, or name the classes in the task"
    raise DataError(f"{place} is {json.dumps(label)}, and the plan names no classes", help=help)


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


def _stdlib_documents(
    root: Path, *, reads: Reads | None, sample: Sampling | None = None
) -> Iterator[Document]:
    """Sources below `root` by relative path, without those in another encoding than UTF-8."""
    names = _stdlib_files(root)
    chosen = names if sample is None else sample.files(names)
    for name in names:
        if sample is not None:
            sample.leave_out(root / name)
            if name not in chosen:
                continue
            sample.num_read_bytes += os.path.getsize(root / name)
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
