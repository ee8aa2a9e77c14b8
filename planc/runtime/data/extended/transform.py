"""Rows as an extension's row transform returns them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from planc.data_sources.kinds import TransformedSource
from planc.runtime.data.bad_documents import BadDocuments
from planc.runtime.data.errors import DataError
from planc.runtime.data.extended.registered import Code, called, loaded
from planc.runtime.data.records import Record, Rows


def transform_of(source: TransformedSource, *, base: Path, bad: BadDocuments) -> Rows:
    """Return a function that replaces rows by the transform's results, and leaves out rows without one."""
    code = loaded(source.code, base=base)

    def rows(records: Iterator[Record]) -> Iterator[Record]:
        for origin, values in records:
            for changed in bad.usable(transformed, code, values, origin=origin):
                if changed is not None:
                    yield Record(origin, changed)

    return rows


def transformed(code: Code, row: dict[str, Any], *, origin: str) -> dict[str, Any] | None:
    """A row's replacement; None to leave it out. Raises DataError for another type, or what it raises."""
    changed = called(code, code.function, row, what=f"`{code.name}` of {origin}")
    if changed is None:
        return None
    if not isinstance(changed, Mapping) or not all(isinstance(key, str) for key in changed):
        raise DataError(
            f"`{code.name}` returns `{type(changed).__name__}` for {origin}, not a row",
            help="return a dict with strings as keys, or None to leave the row out",
        )
    return dict(changed)
