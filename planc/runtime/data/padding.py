"""Whole documents become sequences with ignored labels after them: one document each, or as many as fit.

Which share a sequence is best fit decreasing over a bounded window.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Protocol, TypeVar

import numpy as np

from planc.runtime.data.bad_documents import BadDocuments
from planc.runtime.data.chat import AnyDocument
from planc.runtime.data.columns import Columns, MemoryColumns, Totals
from planc.runtime.data.errors import DataError
from planc.runtime.data.images import ImageColumns
from planc.runtime.data.packing import (
    Encoded,
    StartColumns,
    Stored,
    TokenColumns,
    encode,
    require_length,
    stored_dtype,
)
from planc.runtime.data.padded import ImageDataset, LabeledDataset, MappedDataset, PaddedDataset, WordsDataset
from planc.runtime.data.prepared.stored_array import StoredStarts
from planc.runtime.data.spec import Images, TooLong
from planc.runtime.data.starts import Positions
from planc.runtime.data.tokenizers import Tokenizer


def pad(
    documents: Iterable[AnyDocument],
    *,
    tokenizer: Tokenizer,
    sequence_length: int,
    is_shared: bool = False,
    too_long: TooLong = "truncate",
    in_pairs: bool = False,
    padding_id: int | None = None,
    token_types: int = 0,
    has_targets: bool = False,
    bad: BadDocuments | None = None,
    images: Images | None = None,
) -> PaddedDataset:
    """Sequences of the documents that have a label, in memory; several share one if it `is_shared`.

    Padding is by the end of a document unless `padding_id` is another token. `token_types` are those that
    the model tells apart. DataError if no document has a label.
    """
    columns = MemoryColumns()
    totals = fill(
        documents,
        tokenizer=tokenizer,
        sequence_length=sequence_length,
        is_shared=is_shared,
        too_long=too_long,
        in_pairs=in_pairs,
        columns=columns,
        bad=bad,
        images=images,
    )
    arrays = columns.arrays()
    return padded(
        arrays,
        totals=totals,
        sequence_length=sequence_length,
        padding_id=tokenizer.end_of_document if padding_id is None else padding_id,
        token_types=token_types,
        has_targets=has_targets,
        document_starts=arrays["document_starts"] if is_shared else None,
    )


def fill(
    documents: Iterable[AnyDocument],
    *,
    tokenizer: Tokenizer,
    sequence_length: int,
    is_shared: bool,
    too_long: TooLong,
    columns: Columns,
    in_pairs: bool = False,
    bad: BadDocuments | None = None,
    images: Images | None = None,
) -> Totals:
    """Write the tokens of every document that has a label, and where each sequence of them starts.

    A sequence takes one token more than its length, its last label, unless its documents have classes.
    Documents `in_pairs` are kept or left out two by two, as they come.
    """
    require_length(sequence_length)
    length = sequence_length + 1
    shortening = _Shortening(length, too_long, kept_at_end=len(tokenizer.after))
    dtype = stored_dtype(tokenizer)
    encoded = encode(documents, tokenizer=tokenizer, bad=bad, images=images)
    kept = (shortening.kept_pairs if in_pairs else shortening.kept)(encoded, dtype=dtype)
    tokens = TokenColumns(columns, dtype=dtype)
    starts = columns.column("starts", dtype=np.dtype(np.int64))
    starts.append(np.zeros(1, dtype=np.int64))
    document_starts = StartColumns(columns) if is_shared else None
    image_starts = ImageColumns(columns) if images is not None else None
    for sequence in fitted(kept, room=length) if document_starts else ([one] for one in kept):
        for document in sequence:
            if document_starts is not None:
                document_starts.add(tokens.num_tokens)
            tokens.add(document)
            if image_starts is not None:
                image_starts.add(document.image)
            if document.label is not None:
                columns.column("classes", dtype=np.dtype(np.int64)).append(np.array([document.label]))
        starts.append(np.array([tokens.num_tokens], dtype=np.int64))
    return shortening.totals


class _Shortening:
    """Documents that fit into a sequence of `length` tokens, and the counts of all of them."""

    def __init__(self, length: int, too_long: TooLong, *, kept_at_end: int) -> None:
        self._length, self._too_long, self._kept_at_end = length, too_long, kept_at_end
        self.totals = Totals(0, 0)

    def kept_pairs(self, documents: Iterable[Encoded], *, dtype: np.dtype[np.generic]) -> Iterator[Encoded]:
        """Both documents of each pair, if both can be tokenized and are kept."""
        for _, pair in groupby(documents, key=lambda document: document.number // 2):
            kept = [*self.kept(pair, dtype=dtype)]
            if len(kept) == 2:
                first, second = kept
                is_equal = first.label is None and np.array_equal(first.tokens, second.tokens)
                self.totals = replace(self.totals, num_equal_pairs=self.totals.num_equal_pairs + is_equal)
                yield from kept
            elif kept:
                self.totals = replace(
                    self.totals,
                    num_left_by_pairs=self.totals.num_left_by_pairs + 1,
                    num_dropped_tokens=self.totals.num_dropped_tokens + len(kept[0]),
                )

    def kept(self, documents: Iterable[Encoded], *, dtype: np.dtype[np.generic]) -> Iterator[Encoded]:
        for document in documents:
            if document.label is None and document.classes is None:
                kept = document.first(self._length, dtype=dtype)
            else:
                kept = document.first(self._length - 1, dtype=dtype, kept_at_end=self._kept_at_end)
            is_long = len(document) > len(kept)
            # A part of an image would be another one.
            is_skipped = is_long and (self._too_long == "skip" or document.image_end > len(kept))
            has_labels = not is_skipped and kept.has_labels
            totals = self.totals
            self.totals = replace(
                totals,
                num_documents=totals.num_documents + 1,
                num_text_bytes=totals.num_text_bytes + document.num_text_bytes,
                num_dropped_tokens=totals.num_dropped_tokens
                + len(document)
                - (len(kept) if has_labels else 0),
                num_truncated=totals.num_truncated + (is_long and has_labels),
                num_too_long=totals.num_too_long + is_skipped,
                num_unlabeled=totals.num_unlabeled + (not is_skipped and not has_labels),
            )
            if has_labels:
                yield kept


def padded(
    arrays: Mapping[str, Stored],
    *,
    totals: Totals,
    sequence_length: int,
    padding_id: int,
    token_types: int = 0,
    has_targets: bool = False,
    document_starts: Positions | StoredStarts | None = None,
) -> PaddedDataset:
    """The dataset of arrays that `fill` has written, of inputs and targets if it `has_targets`.

    DataError if it has no sequence, or another type of token than the `token_types` of the model; none are
    given to a model that has none.
    """
    if len(arrays["starts"]) == 1:
        has_documents = totals.num_documents > 0
        fault = "no document of the source has a label" if has_documents else "the source has no documents"
        raise DataError(fault, help="use a source that holds text; a document needs two tokens or more")
    rows: dict[str, Any] = {
        "tokens": arrays["tokens"],
        "starts": arrays["starts"],
        "sequence_length": sequence_length,
        "padding_id": padding_id,
        "totals": totals,
    }
    if has_targets:
        return MappedDataset(**rows)
    if "token_classes" in arrays:
        return WordsDataset(**rows, classes=arrays["token_classes"])
    if "classes" in arrays:
        types = arrays.get("token_types") if token_types else None
        if types is not None and types.max() >= token_types:
            raise DataError(
                f"the tokenizer makes tokens of type {types.max()}, and the model has {token_types} types",
                help="use the model's own tokenizer, or a model with a larger type_vocab_size",
            )
        return LabeledDataset(**rows, classes=arrays["classes"], types=types)
    rows |= {"document_starts": document_starts, "is_target": arrays.get("is_target")}
    if "images" in arrays:
        return ImageDataset(**rows, images=arrays["images"], image_starts=arrays["image_starts"])
    return PaddedDataset(**rows)


_WINDOW_TOKENS = 1 << 22
_WINDOW_SEQUENCES = 64
"""The window has the larger of the two. What fills few sequences leaves much of the last ones empty."""


class _Sized(Protocol):
    """A piece whose length is the number of positions that it takes."""

    def __len__(self) -> int: ...


_Item = TypeVar("_Item", bound=_Sized)


def best_fit(lengths: Sequence[int], *, room: int) -> list[list[int]]:
    """The indices that share each bin of size `room`, ascending: the longest first, each where the least
    room is left.

    Of equal lengths the first is placed first, and of bins with equal room the one that got its room last.
    All lengths are from 1 to `room`.
    """
    bins: list[list[int]] = []
    rooms: list[int] = []
    """The sizes of room that bins have left, ascending, each once."""
    with_room: dict[int, list[int]] = {}
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        place = bisect_left(rooms, lengths[index])
        if place == len(rooms):
            number, left = len(bins), room
            bins.append([])
        else:
            left = rooms[place]
            number = with_room[left].pop()
            if not with_room[left]:
                del with_room[left], rooms[place]
        bins[number].append(index)
        left -= lengths[index]
        if left:
            if left not in with_room:
                insort(rooms, left)
                with_room[left] = []
            with_room[left].append(number)
    for one in bins:
        one.sort()
    return bins


def fitted(items: Iterable[_Item], *, room: int, window: int | None = None) -> Iterator[list[_Item]]:
    """Bins of items, each item once and whole, while `window` tokens at most wait to be placed.

    Of a full window the fuller half of its bins leaves, and the rest waits for items that fit better. Bins
    that leave together are in the order of their first items. No item is longer than `room`.
    """
    window = window or max(_WINDOW_TOKENS, _WINDOW_SEQUENCES * room)
    waiting: list[_Item] = []
    num_waiting = 0
    for item in items:
        waiting.append(item)
        num_waiting += len(item)
        if num_waiting >= window:
            leaving, staying = _fuller_half(waiting, room=room)
            yield from leaving
            waiting, num_waiting = staying, sum(map(len, staying))
    for bin in sorted(best_fit([len(item) for item in waiting], room=room)):
        yield [waiting[index] for index in bin]


def _fuller_half(items: list[_Item], *, room: int) -> tuple[list[list[_Item]], list[_Item]]:
    """The fuller half of the bins, and the other items in their order."""
    lengths = [len(item) for item in items]
    bins = sorted(best_fit(lengths, room=room))
    by_room = sorted(range(len(bins)), key=lambda number: room - sum(lengths[i] for i in bins[number]))
    leaving = sorted(by_room[: -(-len(bins) // 2)])
    placed = {index for number in leaving for index in bins[number]}
    staying = [item for index, item in enumerate(items) if index not in placed]
    return [[items[index] for index in bins[number]] for number in leaving], staying
