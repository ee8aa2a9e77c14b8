"""The documents of any source."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, assert_never

from planc.data_sources import Source, kinds
from planc.data_sources.globs import HubDataset
from planc.runtime.data.bad_documents import BadDocuments
from planc.runtime.data.chat import AnyDocument, Conversation, conversations
from planc.runtime.data.extended.reading import extension_documents
from planc.runtime.data.extended.transform import transform_of
from planc.runtime.data.pairs import pairs
from planc.runtime.data.records import Record, Rows, hub_records, split_records
from planc.runtime.data.sampling import Sampling
from planc.runtime.data.sources import (
    Document,
    TextPair,
    documents,
    labeled_document,
    labeled_words,
    mapped_documents,
    matched_documents,
    text_documents,
)
from planc.runtime.data.spec import DataSpec, HeldOut
from planc.runtime.ranks.reads import Reads


def source_documents(
    source: Source,
    *,
    base: Path,
    reads: Reads | None = None,
    bad: BadDocuments | None = None,
    sample: Sampling | None = None,
) -> Iterator[AnyDocument]:
    """The documents of any source, or of a `sample` of it, always in the same order. Raises DataError."""
    bad = bad or BadDocuments()
    match source:
        case kinds.ExtensionSource():
            return extension_documents(source, base=base, bad=bad, sample=sample)
        case kinds.TransformedSource():
            rows = transform_of(source, base=base, bad=bad, sample=sample)
            return documents_of_rows(source.source, rows, base=base, reads=reads, bad=bad, sample=sample)
        case kinds.PairsSource():
            return _noted(
                pairs(source, base=base, reads=reads, bad=bad, sample=sample), source.hub, reads=reads
            )
        case kinds.MatchedSource() | kinds.MappedSource():
            records = split_records(source, base=base, reads=reads, bad=bad, sample=sample)
            return _noted(_two_by_two(source, records, bad=bad), source.hub, reads=reads)
        case kinds.TextSource() | kinds.PythonStdlibSource():
            return documents(source, base=base, reads=reads, bad=bad, sample=sample)
        case _:
            return documents_of_rows(source, iter, base=base, reads=reads, bad=bad, sample=sample)


def documents_of_rows(
    source: kinds.RowSource,
    rows: Rows,
    *,
    base: Path,
    reads: Reads | None,
    bad: BadDocuments,
    sample: Sampling | None,
) -> Iterator[AnyDocument]:
    """The documents of a source's rows, which `rows` may replace by others."""
    match source:
        case kinds.ChatSource():
            found = conversations(source, base=base, rows=rows, reads=reads, bad=bad, sample=sample)
            return _noted(found, source.hub, reads=reads)
        case kinds.HfDatasetSource():
            records = split_records(source, base=base, reads=reads, bad=bad, sample=sample)
            texts = text_documents(rows(records), field=source.field, bad=bad)
            return _noted(texts, source.hub, reads=reads)
        case kinds.LabeledSource():
            records = split_records(source, base=base, reads=reads, bad=bad, sample=sample)
            return _noted(_labeled(source, rows(records), bad=bad), source.hub, reads=reads)
        case kinds.HfHubSource(_, _, split, subset, field):
            hub = source.hub
            assert hub is not None, "it names a dataset of the Hub"
            records = hub_records(hub, split=split, subset=subset, sample=sample)
            return _noted(text_documents(rows(records), field=field, bad=bad), hub, reads=reads)
        case kinds.JsonLinesSource():
            return documents(source, base=base, reads=reads, bad=bad, sample=sample, rows=rows)
        case _:
            assert_never(source)


def _labeled(
    source: kinds.LabeledSource, records: Iterator[Record], *, bad: BadDocuments
) -> Iterator[AnyDocument]:
    made: Callable[..., AnyDocument] = labeled_words if source.by_word else labeled_document
    for origin, values in records:
        yield from bad.usable(made, values, source=source, origin=origin)


def _two_by_two(
    source: kinds.MatchedSource | kinds.MappedSource, records: Iterator[Record], *, bad: BadDocuments
) -> Iterator[Document]:
    made: Callable[..., Any] = (
        matched_documents if isinstance(source, kinds.MatchedSource) else mapped_documents
    )
    for origin, values in records:
        for pair in bad.usable(made, values, source=source, origin=origin):
            yield from pair


def spec_documents(
    spec: DataSpec,
    *,
    base: Path,
    reads: Reads | None = None,
    bad: BadDocuments | None = None,
    sample: Sampling | None = None,
) -> Iterator[AnyDocument]:
    """The documents of a spec's source, without those that are held out, or those alone."""
    documents = source_documents(spec.source, base=base, reads=reads, bad=bad, sample=sample)
    held_out = spec.held_out
    if held_out is None:
        return documents
    return (document for document in documents if is_held_out(document, held_out) == held_out.is_kept)


def is_held_out(document: AnyDocument, held_out: HeldOut) -> bool:
    """A document's side, which depends on its own content alone, so files that are added move no other."""
    whole = document.whole if isinstance(document, Conversation | Document) else b""
    content = hashlib.sha256(whole or _content(document)).digest()
    return int.from_bytes(content[:8], "big") < _limit(held_out.share)


@functools.lru_cache(maxsize=8)
def _limit(share: str) -> int:
    return int(Fraction(share) * 2**64)


def _content(document: AnyDocument) -> bytes:
    return document.text.encode() if isinstance(document, Document) else document.content


def _noted(
    documents: Iterator[AnyDocument], hub: HubDataset | None, *, reads: Reads | None
) -> Iterator[AnyDocument]:
    """The documents; what the Hub gave is recorded in `reads`, because the library reads the files itself."""
    if hub is None or reads is None:
        yield from documents
        return
    content = hashlib.sha256()
    for document in documents:
        content.update(f"{document.num_bytes}:".encode())
        content.update(_content(document))
        if isinstance(document, Document | TextPair) and document.label is not None:
            content.update(f"={document.label}".encode())
        yield document
    reads.add("text", hub.name, content.hexdigest())
