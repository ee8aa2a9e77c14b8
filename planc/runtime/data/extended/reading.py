"""The documents of an extension's data source, always in the same order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from planc.data_sources.kinds import ExtensionSource
from planc.runtime.data.bad_documents import BadDocuments
from planc.runtime.data.chat import AnyDocument, TokenIds
from planc.runtime.data.errors import DataError
from planc.runtime.data.extended.items import item_documents
from planc.runtime.data.extended.registered import Code, called, loaded
from planc.runtime.data.sampling import Sampling

Make = Callable[[], Sequence[AnyDocument]]
"""Makes the documents of one item: one, or several of a conversation. Raises DataError."""

_KINDS = {"Document": "text", "Conversation": "messages"}
_END = object()


@dataclass(frozen=True, slots=True)
class Opened:
    """A new instance of an extension's data source. `length` is None for a stream."""

    code: Code
    items: Any
    length: int | None

    @staticmethod
    def of(source: ExtensionSource, *, base: Path) -> Opened:
        """Raises DataError if it can't be made, or is neither a sequence nor a stream."""
        code = loaded(source.code, base=base)
        made = called(code, code.function, what=f"the data source `{code.name}`")
        if hasattr(made, "__getitem__"):
            return Opened(code, made, _length(code, made))
        if isinstance(made, Iterable):
            return Opened(code, made, None)
        raise DataError(
            f"the data source `{code.name}` is of type {type(made).__name__}, which gives no documents",
            help="write a class with __len__ and __getitem__, or a function that yields documents",
        )

    def documents(self, index: int) -> Sequence[AnyDocument]:
        """The documents of an index. Raises DataError for whatever the source's code raises."""
        origin = self._origin(index)
        return item_documents(called(self.code, self.items.__getitem__, index, what=origin), origin=origin)

    def each(self) -> Iterator[Make]:
        """Yield, in order, the function that makes each item's documents. A stream's error is a DataError."""
        if self.length is not None:
            yield from (partial(self.documents, index) for index in range(self.length))
            return
        stream, index = iter(self.items), 0
        while (item := called(self.code, next, stream, _END, what=self._origin(index))) is not _END:
            yield partial(item_documents, item, origin=self._origin(index))
            index += 1

    def require_same_length(self) -> None:
        """DataError if a sequence has another length than at first."""
        if self.length is not None and (now := _length(self.code, self.items)) != self.length:
            raise DataError(
                f"the length of `{self.code.name}` was {self.length}, and is {now} after reading",
                help="return the same length at any time",
            )

    def _origin(self, index: int) -> str:
        return f"document {index} of `{self.code.name}`"


def _length(code: Code, made: Any) -> int:
    """The length of a sequence. Raises DataError without one, or of 0."""
    if not hasattr(made, "__len__"):
        raise DataError(
            f"the data source `{code.name}` has no __len__",
            help="add __len__, or write a function that yields documents",
        )
    length: int = called(code, len, made, what=f"the length of `{code.name}`")
    if not length:
        raise DataError(
            f"the data source `{code.name}` has no documents", help="return a length of 1 or more"
        )
    return length


def extension_documents(
    source: ExtensionSource, *, base: Path, bad: BadDocuments, sample: Sampling | None
) -> Iterator[AnyDocument]:
    """The documents of an extension's source, or the first of them. Raises DataError."""
    opened = Opened.of(source, base=base)
    makers: Iterator[Make] = opened.each()
    if sample is not None:
        makers = sample.first(makers, num_rows=opened.length)
    kind = ""
    for make in makers:
        for documents in bad.usable(_of_one_kind, make, kind):
            for document in documents:
                kind = _kind(document)
                yield document
    opened.require_same_length()


def _of_one_kind(make: Make, kind: str) -> Sequence[AnyDocument]:
    documents = make()
    for document in documents:
        if kind and _kind(document) != kind:
            raise DataError(
                f"{document.origin} is {_kind(document)}, and those before it are {kind}",
                help="return documents of one kind, and labels with all token ids or with none",
            )
    return documents


def _kind(document: AnyDocument) -> str:
    if isinstance(document, TokenIds):
        return "token ids without labels" if document.is_target is None else "token ids with labels"
    return _KINDS[type(document).__name__]
