"""Datasets in the formats of Hugging Face's `datasets`: local files, or a pinned commit of the Hub.

The library's own readers of parquet, arrow and JSON are used, never a dataset's script. Records are
streamed: only a dataset's tokens are ever in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planc.runtime.data.bad_documents import BadDocuments
from planc.runtime.data.errors import DataError
from planc.runtime.data.sources import Document, matched_files, text_document
from planc.runtime.errors import STOPS
from planc.runtime.ranks.reads import Reads
from planc.vocab import DATASET_FORMATS


@dataclass(frozen=True, slots=True)
class HfDatasetSource:
    """Local files; each record's `field` is a document. `patterns` are globs relative to a base directory."""

    patterns: tuple[str, ...]
    field: str = "text"


@dataclass(frozen=True, slots=True)
class HfHubSource:
    """A dataset on the Hub at one commit. `revision` is the commit's 40 hexadecimal digits."""

    repository: str
    revision: str
    split: str = "train"
    subset: str | None = None
    field: str = "text"


def dataset_documents(
    source: HfDatasetSource | HfHubSource,
    *,
    base: Path,
    reads: Reads | None = None,
    bad: BadDocuments | None = None,
) -> Iterator[Document]:
    """The documents of a dataset in its own order. Raises DataError."""
    bad = bad or BadDocuments()
    if isinstance(source, HfHubSource):
        name = f"{source.repository}@{source.revision[:12]}"
        found = _documents(_hub_records(source, name=name), name=name, field=source.field, bad=bad)
        yield from _noted(found, name=name, reads=reads)
        return
    for file in matched_files(source.patterns, base=base):
        found = _documents(_file_records(base / file, name=file), name=file, field=source.field, bad=bad)
        yield from _noted(found, name=file, reads=reads)


def _noted(documents: Iterator[Document], *, name: str, reads: Reads | None) -> Iterator[Document]:
    """The documents; their text is recorded in `reads`, because the library reads the files itself."""
    content = hashlib.sha256()
    for document in documents:
        content.update(f"{document.num_bytes}:{document.text}".encode())
        yield document
    if reads is not None:
        reads.add("text", name, content.hexdigest())


def _documents(
    records: Iterator[dict[str, Any]], *, name: str, field: str, bad: BadDocuments
) -> Iterator[Document]:
    for number, record in enumerate(records, start=1):
        yield from bad.usable(text_document, record, field=field, origin=f"{name}:{number}")


def _file_records(path: Path, *, name: str) -> Iterator[dict[str, Any]]:
    kind = DATASET_FORMATS.get(path.suffix)
    if kind is None:
        raise DataError(
            f"{name} has an unknown format",
            help=f"use a file whose name ends in {', '.join(DATASET_FORMATS)}",
        )
    datasets = _library(name)
    try:
        found = datasets.load_dataset(kind, data_files=[str(path)], split="train", streaming=True)
        yield from found
    # The library raises the errors of its readers, of many kinds.
    except STOPS:
        raise
    except BaseException as error:
        raise DataError(
            f"cannot read {name}: {_reason(error)}", help="check that the file is complete"
        ) from error


def _hub_records(source: HfHubSource, *, name: str) -> Iterator[dict[str, Any]]:
    datasets = _library(name)
    try:
        found = datasets.load_dataset(
            source.repository, source.subset, revision=source.revision, split=source.split, streaming=True
        )
        yield from found
    # A lost connection, a missing repository, commit, subset or split, a script: each has its own error.
    except STOPS:
        raise
    except BaseException as error:
        raise DataError(
            f"cannot read {name} from the Hugging Face Hub: {_reason(error)}",
            help="check the connection and the names, or download its files and write "
            '`hf_dataset("data/*.parquet")`',
        ) from error


def _library(name: str) -> Any:
    try:
        # Lazy: no other source needs this library, which takes seconds to import.
        import datasets
    except ImportError as error:
        raise DataError(
            f"reading {name} needs the datasets library", help="install it: pip install 'planc[run]'"
        ) from error
    return datasets


def _reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
