"""The records of files, dataset directories and the Hub: one reading, by what a file holds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from planc.data_sources.globs import HubDataset
from planc.data_sources.kinds import (
    ChatSource,
    HfDatasetSource,
    LabeledSource,
    MappedSource,
    MatchedSource,
    PairsSource,
)
from planc.runtime.data.arrow_rows import arrow_rows, library, num_rows, reason, undecoded
from planc.runtime.data.bad_documents import BadDocuments, Faults
from planc.runtime.data.content import open_content
from planc.runtime.data.errors import DataError
from planc.runtime.data.json_rows import json_rows
from planc.runtime.data.sampling import Sampling
from planc.runtime.data.splits import Files, Part, parts_of
from planc.runtime.errors import STOPS
from planc.runtime.ranks.reads import Reads

_HASHED_BYTES = 1 << 20


class Record(NamedTuple):
    """A row by its names, and where it came from: file:line, or file:row for a file of columns."""

    origin: str
    values: dict[str, Any]


Rows = Callable[[Iterator[Record]], Iterator[Record]]
"""A change of rows before they are documents; `iter` leaves them as they are."""


def file_records(
    path: Path,
    *,
    name: str,
    reads: Reads | None = None,
    bad: BadDocuments | None = None,
    only_json: bool = False,
    sample: Sampling | None = None,
) -> Generator[Record]:
    """The records of one file of JSON lines, a JSON list, Parquet or Arrow. Raises DataError.

    `reads` records the file. With `only_json`, files of columns are an error.
    """
    bad = bad or BadDocuments()
    with open_content(path, name=name, reads=reads) as content:
        if content.table is None and sample is not None:
            rows = sample.rows(content, path, name=name, bad=bad)
        elif content.table is None:
            rows = json_rows(content, name=name, bad=bad)
        elif only_json:
            raise is_table(name, content.table)
        elif content.compression is not None:
            raise DataError(
                f"{name} is a {content.table} file that is compressed by {content.compression}",
                help="decompress it: files of columns are compressed inside",
            )
        elif sample is not None:
            rows = sample.table_rows(path, name=name, table=content.table)
        else:
            rows = arrow_rows(path, name=name, table=content.table)
        yield from map(Record._make, rows)


def is_table(name: str, table: str) -> DataError:
    """The error for a file of columns in place of text."""
    return DataError(
        f"{name} is a file in the format {table}, not text",
        help=f'write `hf_dataset("{name}")`; `chat` reads such files too',
    )


def split_records(
    source: ChatSource | PairsSource | HfDatasetSource | LabeledSource | MatchedSource | MappedSource,
    *,
    base: Path,
    reads: Reads | None = None,
    bad: BadDocuments | None = None,
    sample: Sampling | None = None,
) -> Iterator[Record]:
    """The records of a source's split of files, directories or a dataset of the Hub, always in one order.

    Raises DataError. `reads` records the files; of the Hub, which has none here, it records nothing.
    """
    hub, split, subset = source.hub, source.split, source.subset
    if hub is not None:
        yield from hub_records(hub, split=split, subset=subset, sample=sample)
        return
    for part in parts_of(source.patterns, split=split, subset=subset, base=base, count=_count):
        yield from _part_records(part, reads=reads, bad=bad, sample=sample)


def _part_records(
    part: Part, *, reads: Reads | None, bad: BadDocuments | None, sample: Sampling | None
) -> Iterator[Record]:
    if part.rows is None:
        yield from files_records(part.files, reads=reads, bad=bad, sample=sample)
        return
    records = chain.from_iterable(file_records(path, name=name, bad=bad) for name, path in part.files)
    rows = islice(records, part.rows.start, part.rows.stop)
    yield from rows if sample is None else sample.first(rows, num_rows=len(part.rows))
    for name, path in part.files if reads is not None else ():
        assert reads is not None
        with open(path, "rb") as file:
            reads.add("file", name, hashlib.file_digest(file, "sha256").hexdigest())


def files_records(
    files: Files,
    *,
    reads: Reads | None = None,
    bad: BadDocuments | None = None,
    only_json: bool = False,
    sample: Sampling | None = None,
) -> Iterator[Record]:
    """The records of files one after another, or of a `sample` of them."""
    chosen = files if sample is None else sample.files(files)
    for name, path in files:
        if (name, path) in chosen:
            yield from file_records(path, name=name, reads=reads, bad=bad, only_json=only_json, sample=sample)
        elif sample is not None:
            sample.leave_out(path)


def _count(name: str, path: Path) -> int:
    """The number of records of a file, as `file_records` has them when it leaves out what can't be used."""
    with open_content(path, name=name) as content:
        if content.table is not None and content.compression is None:
            return num_rows(path, name=name, table=content.table)
    return sum(1 for _ in file_records(path, name=name, bad=Faults()))


def hub_records(
    hub: HubDataset, *, split: str, subset: str | None, sample: Sampling | None = None
) -> Iterator[Record]:
    """The records of a dataset of the Hub at one commit, streamed; of a part of a split, downloaded.

    The library's own readers are used, never a dataset's script. Raises DataError.
    """
    name = hub.name
    datasets = library(name)
    try:
        is_whole = split.replace("_", "").replace(".", "").isalnum()
        found = datasets.load_dataset(
            hub.repository, subset, revision=hub.revision, split=split, streaming=is_whole
        )
        rows = (
            Record(f"{name}:{number}", row) for number, row in enumerate(undecoded(found, datasets), start=1)
        )
        yield from rows if sample is None else sample.first(rows, num_rows=None)
    # A lost connection, a missing repository, commit, subset or split, a script: each has its own error.
    except STOPS:
        raise
    except BaseException as error:
        raise DataError(
            f"cannot read {name} from the Hugging Face Hub: {reason(error)}",
            help="check the connection and the names, or download its files and write "
            '`hf_dataset("data/*.parquet")`',
        ) from error
