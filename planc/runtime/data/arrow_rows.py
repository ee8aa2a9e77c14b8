"""Rows of Parquet and Arrow files, batch by batch, as Hugging Face's `datasets` has them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from planc.runtime.data.errors import DataError
from planc.runtime.errors import STOPS

_BATCH_ROWS = 1_000


def library(name: str) -> Any:
    """`datasets`. Raises DataError if it is not installed."""
    try:
        # Lazy: only files of columns and the Hub need this library, which takes seconds to import.
        import datasets
    except ImportError as error:
        raise DataError(
            f"reading {name} needs the datasets library", help="install it: pip install 'planc[run]'"
        ) from error
    return datasets


def arrow_rows(path: Path, *, name: str, table: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each row, and its file:row, counted from 1. Raises DataError."""
    datasets = library(name)
    start = 0
    try:
        for batch in _batches(path, table=table):
            # A name of its own, because hashing a table for one takes as long as reading it.
            table_of = datasets.table.InMemoryTable(batch)
            rows = undecoded(datasets.Dataset(table_of, fingerprint="rows"), datasets)
            for number in range(len(batch)):
                yield f"{name}:{start + number + 1}", rows[number]
            start += len(batch)
    # The library raises the errors of its readers, of many kinds.
    except STOPS:
        raise
    except BaseException as error:
        raise _unreadable(name, error) from error


def undecoded(rows: Any, datasets: Any) -> Any:
    """The rows of `datasets`, with the content of images as they are stored."""
    for name, feature in (rows.features or {}).items():
        if isinstance(feature, datasets.Image):
            rows = rows.cast_column(name, datasets.Image(decode=False))
        elif isinstance(getattr(feature, "feature", None), datasets.Image):
            rows = rows.cast_column(name, type(feature)(datasets.Image(decode=False)))
    return rows


def num_rows(path: Path, *, name: str, table: str) -> int:
    """The number of rows; those of a Parquet file are not read. Raises DataError."""
    library(name)
    try:
        if table == "Parquet":
            from pyarrow import parquet

            return int(parquet.read_metadata(path).num_rows)
        return sum(map(len, _batches(path, table=table)))
    except STOPS:
        raise
    except BaseException as error:
        raise _unreadable(name, error) from error


def _batches(path: Path, *, table: str) -> Iterator[Any]:
    """Tables of some rows each."""
    import pyarrow
    from pyarrow import ipc, parquet

    if table == "Parquet":
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH_ROWS):
                yield pyarrow.Table.from_batches([batch], schema=file.schema_arrow)
        return
    with pyarrow.memory_map(str(path)) as file:
        if file.read(6) == b"ARROW1":
            reader = ipc.open_file(file)
            batches = (reader.get_batch(place) for place in range(reader.num_record_batches))
        else:
            file.seek(0)
            batches = reader = ipc.open_stream(file)
        for batch in batches:
            yield pyarrow.Table.from_batches([batch], schema=reader.schema)


def _unreadable(name: str, error: BaseException) -> DataError:
    return DataError(f"cannot read {name}: {reason(error)}", help="check that the file is complete")


def reason(error: BaseException) -> str:
    """The kind of an error and its first line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
