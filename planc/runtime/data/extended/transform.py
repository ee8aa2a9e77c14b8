"""Rows as an extension's row transform returns them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

from planc.data_sources.kinds import HfDatasetSource, HfHubSource, JsonLinesSource, TransformedSource
from planc.runtime.data.bad_documents import BadDocuments
from planc.runtime.data.errors import DataError
from planc.runtime.data.extended.registered import Code, called, loaded
from planc.runtime.data.records import Record, Rows
from planc.runtime.data.sampling import Sampling


def transform_of(
    source: TransformedSource, *, base: Path, bad: BadDocuments, sample: Sampling | None
) -> Rows:
    """Return a function that replaces rows by the transform's results, and leaves out rows without one."""
    code, unread = loaded(source.code, base=base), _unread_by(source)

    def rows(records: Iterator[Record]) -> Iterator[Record]:
        num_rows = num_left_out = 0
        for origin, values in records:
            num_rows += 1
            for changed in bad.usable(transformed, code, values, origin=origin, unread=unread):
                if changed is None:
                    num_left_out += 1
                else:
                    yield Record(origin, changed)
        is_all = sample is None or sample.is_whole
        if is_all and num_rows and num_left_out == num_rows:
            raise DataError(
                f"`{code.name}` returns None for every row of {num_rows:_}",
                help="return the row; None leaves a row out, and so does a function without a return",
            )

    return rows


_OF_TOKENS = frozenset(("input_ids", "labels", "attention_mask", "loss_mask"))
"""Keys by which other libraries give tokens, and those to train on."""


def _unread_by(source: TransformedSource) -> Set[str]:
    """Return the keys of tokens that rows can't be given: those of one text, which is all that is read."""
    return _OF_TOKENS - {source.source.field} if isinstance(source.source, _OF_TEXTS) else frozenset()


_OF_TEXTS = (JsonLinesSource, HfDatasetSource, HfHubSource)


def transformed(
    code: Code, row: dict[str, Any], *, origin: str, unread: Set[str] = frozenset()
) -> dict[str, Any] | None:
    """A row's replacement; None to leave it out. Raises DataError for another type, or what it raises.

    A key of `unread` that the transform adds is an error: training without it would be silent.
    """
    before = frozenset(row)
    changed = called(code, code.function, row, what=f"`{code.name}` of {origin}")
    if changed is None:
        return None
    if not isinstance(changed, Mapping) or not all(isinstance(key, str) for key in changed):
        raise DataError(
            f"`{code.name}` returns `{type(changed).__name__}` for {origin}, not a row",
            help="return a dict with strings as keys, or None to leave the row out",
        )
    if added := [key for key in changed if key in unread and key not in before]:
        raise DataError(
            f'`{code.name}` adds "{added[0]}" to {origin}, and only the text of a row is read',
            help="return the text; to leave tokens out of the loss, transform rows of `chat(...)` "
            'to "prompt" and "completion", or write a data source of "input_ids" and "labels"',
        )
    return dict(changed)
