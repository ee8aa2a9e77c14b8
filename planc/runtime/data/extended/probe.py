"""Whether an extension's data source or row transform gives the same documents at any time, on any machine.

It is asked for some documents twice, in another order, and in another process, where hashes are seeded
differently. What it reads in addition to its own code shows in the digest of these documents too.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from planc.data_sources import BY_NAME
from planc.data_sources.kinds import ExtensionSource, TransformedSource
from planc.runtime.data.bad_documents import Faults
from planc.runtime.data.chat import AnyDocument
from planc.runtime.data.documents import documents_of_rows
from planc.runtime.data.errors import DataError
from planc.runtime.data.extended.reading import Opened
from planc.runtime.data.extended.registered import Code, loaded
from planc.runtime.data.extended.transform import transformed
from planc.runtime.data.records import Record
from planc.runtime.data.sources import Document
from planc.runtime.own_process import NoAnswerError, ask, extension_as_json, extension_of, serve

Extended = ExtensionSource | TransformedSource
Digests = dict[str, str]
"""A digest of each document or row, by what messages call it."""
Asking = Callable[[bool, int], Digests]
"""Asks for a number of documents, always the same ones, from the last to the first if the first is true."""

_NUM_PROBED = 24
NUM_DIGESTED = 1_024
"""The documents that prepared data is recognized by: a change of any other is not noticed."""
_SECONDS = 600
_HELP = "compute each document from its index or row alone, with a generator seeded by it"


def probed(source: Extended, *, base: Path) -> str:
    """A SHA-256 of what the source gives for some documents. DataError if that is not always the same."""
    digests = _asking(source, base=base)
    first = digests(False, _NUM_PROBED)
    _require_same(first, digests(False, _NUM_PROBED), source, when="when it is asked again")
    _require_same(first, digests(True, _NUM_PROBED), source, when="in another order")
    more = digests(False, NUM_DIGESTED)
    _require_same(more, _in_another_process(source, base=base), source, when="in another process")
    return hashlib.sha256(json.dumps(more, sort_keys=True).encode()).hexdigest()


def _asking(source: Extended, *, base: Path) -> Asking:
    """Return a function that asks the source for documents."""
    if isinstance(source, TransformedSource):
        return _rows_of(source, base=base)
    kept = Opened.of(source, base=base)

    def digests(backward: bool, number: int) -> Digests:
        # What keeps state between documents shows in a sequence that has been asked already.
        opened = Opened.of(source, base=base) if backward or kept.length is None else kept
        return _documents_of(opened, backward=backward, number=number)

    return digests


def _documents_of(opened: Opened, *, backward: bool, number: int) -> Digests:
    if opened.length is None:
        makers = enumerate(islice(opened.each(), number))
        return {f"document {index}": _made(make) for index, make in makers}
    places = np.unique(
        np.linspace(0, opened.length - 1, num=min(opened.length, number)).astype(np.int64)
    ).tolist()
    order = reversed(places) if backward else places
    digests = {f"document {index}": _made(opened.documents, index) for index in order}
    return {**digests, "its length": str(opened.length)}


def _rows_of(source: TransformedSource, *, base: Path) -> Asking:
    code, rows = loaded(source.code, base=base), list[Record]()

    def take(records: Iterator[Record]) -> Iterator[Record]:
        rows.extend(islice(records, NUM_DIGESTED))
        return iter(())

    left = documents_of_rows(source.source, take, base=base, reads=None, bad=Faults(), sample=None)
    assert not list(left), "all rows are taken"

    def digests(backward: bool, number: int) -> Digests:
        order = reversed(rows[:number]) if backward else rows[:number]
        return {f"row {row.origin}": _made(_row_digest, code, row) for row in order}

    return digests


def _row_digest(code: Code, row: Record) -> str:
    changed = transformed(code, deepcopy(row.values), origin=row.origin)
    return hashlib.sha256(json.dumps(changed, default=str).encode("utf-8", "surrogatepass")).hexdigest()


def _made(make: Callable[..., Any], *arguments: object) -> str:
    """A digest of what `make` returns, or the message of the DataError that it raises."""
    try:
        made = make(*arguments)
    except DataError as error:
        return error.message
    return made if isinstance(made, str) else _digest(made)


def _digest(documents: Sequence[AnyDocument]) -> str:
    content = hashlib.sha256()
    for document in documents:
        part = document.text.encode("utf-8") if isinstance(document, Document) else document.content
        content.update(f"{type(document).__name__} {len(part)}:".encode())
        content.update(part)
    return content.hexdigest()


def _require_same(first: Mapping[str, str], other: Mapping[str, str], source: Extended, *, when: str) -> None:
    names = [name for name in {**first, **other} if first.get(name) != other.get(name)]
    if not names:
        return
    kind = "row transform" if isinstance(source, TransformedSource) else "data source"
    others = f", and {len(names) - 1} of {len(first) - 1} others" if len(names) > 1 else ""
    raise DataError(
        f"the {kind} `{source.code.entry}` is not deterministic: {names[0]} is different {when}{others}",
        help=_HELP,
    )


def _in_another_process(source: Extended, *, base: Path) -> Digests:
    """The same documents, backward, in a process with other hashes. DataError if that fails."""
    rows = asdict(source.source) if isinstance(source, TransformedSource) else None
    request = {"code": extension_as_json(source.code), "rows": rows, "base": str(base.absolute())}
    seed = "1" if os.environ.get("PYTHONHASHSEED") == "2" else "2"
    try:
        answer = ask(__name__, request, seconds=_SECONDS, environment={"PYTHONHASHSEED": seed})
    except NoAnswerError as error:
        raise DataError(
            f"`{source.code.entry}`, asked for documents in a process of its own, {error}",
            help="compute a document when it is asked for, from nothing that the process did before",
        ) from error
    if "message" in answer:
        raise DataError(answer["message"], help=answer["help"])
    digests: Digests = answer["digests"]
    return digests


def main() -> None:
    """Answer `_in_another_process`."""
    serve(_answer)


def _answer(request: dict[str, Any]) -> dict[str, object]:
    code, rows = extension_of(request["code"]), request["rows"]
    source: Extended = ExtensionSource(code)
    if rows is not None:
        arguments = {name: tuple(value) if isinstance(value, list) else value for name, value in rows.items()}
        inner: Any = BY_NAME[rows["kind"]](**arguments)
        source = TransformedSource(inner, code)
    try:
        return {"digests": _asking(source, base=Path(request["base"]))(True, NUM_DIGESTED)}
    except DataError as error:
        return {"message": error.message, "help": error.help}
