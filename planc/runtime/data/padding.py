"""Sequences of whole documents, padded with ignored labels: one document each, or as many as fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from planc.runtime.data.bad_documents import BadDocuments
from planc.runtime.data.best_fit import fitted
from planc.runtime.data.chat import AnyDocument
from planc.runtime.data.columns import Columns, MemoryColumns, Totals
from planc.runtime.data.errors import DataError
from planc.runtime.data.packing import (
    IGNORED_LABEL,
    Encoded,
    Positions,
    StartColumns,
    Stored,
    TokenColumns,
    encode,
    require_length,
    restarting,
    starts_within,
    stored_dtype,
)
from planc.runtime.data.prepared.stored_array import StoredStarts
from planc.runtime.data.spec import TooLong
from planc.runtime.data.tokenizers import Tokenizer
from planc.tables import plural


@dataclass(frozen=True, slots=True, eq=False)
class PaddedDataset:
    """Sequences of whole documents: one each (packing "none"), or several with `document_starts` ("whole").

    Attention is causal, so padding after the documents does not change them, and needs no mask.
    """

    tokens: Stored
    """The tokens of all documents that are kept, end to end."""
    starts: Stored
    """[num_sequences + 1]: sequence i holds tokens [starts[i], starts[i + 1])."""
    sequence_length: int
    padding_id: int
    totals: Totals
    """All documents that were read, and those that were shortened or left out."""
    document_starts: Positions | StoredStarts | None = None
    """Starts of documents in `tokens`, ascending; None for one in each sequence."""
    is_target: Stored | None = None
    """The mask of tokens that may be labels; None for all."""

    @property
    def num_documents(self) -> int:
        return self.totals.num_documents

    @property
    def num_text_bytes(self) -> int:
        return self.totals.num_text_bytes

    @property
    def num_dropped_tokens(self) -> int:
        """Tokens cut off long documents, and those of documents that are left out."""
        return self.totals.num_dropped_tokens

    @property
    def num_tokens(self) -> int:
        """All tokens that are kept, without padding."""
        return len(self.tokens)

    @property
    def num_sequences(self) -> int:
        return len(self.starts) - 1

    @property
    def num_padding_tokens(self) -> int:
        """Positions of all sequences after which no document has a token."""
        return self.num_sequences * self.sequence_length - (self.num_tokens - self.num_sequences)

    @property
    def max_token_id(self) -> int:
        return max(int(self.tokens.max()), self.padding_id)

    def __len__(self) -> int:
        return self.num_sequences

    def __getitem__(self, index: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(inputs [S], labels [S]) of sequence `index`; the label of a position is the token after it."""
        start, stop = self._bounds(index)
        row = self.tokens[start:stop]
        inputs = np.full(self.sequence_length, self.padding_id, dtype=np.int64)
        labels = np.full(self.sequence_length, IGNORED_LABEL, dtype=np.int64)
        held, num_labels = min(len(row), self.sequence_length), len(row) - 1
        inputs[:held] = row[:held]
        labels[:num_labels] = row[1:]
        if self.is_target is not None:
            labels[:num_labels][~self.is_target[start + 1 : stop]] = IGNORED_LABEL
        if self.document_starts is not None:
            # Nothing is predicted across documents: no document determines which one comes next.
            labels[starts_within(self.document_starts, start + 1, stop) - (start + 1)] = IGNORED_LABEL
        return inputs, labels

    def position_ids(self, index: int) -> Positions:
        """[S]: positions in the sequence, or in each of its documents; padding is then one more of them."""
        if self.document_starts is None:
            return np.arange(self.sequence_length, dtype=np.int64)
        start, stop = self._bounds(index)
        ends = [stop - start] if stop - start < self.sequence_length else []
        starts = np.append(starts_within(self.document_starts, start, stop) - start, ends).astype(np.int64)
        return restarting(starts, length=self.sequence_length)

    def token_types(self, index: int) -> Positions | None:
        """[S]: the types of the tokens of two texts, and 0 for padding; None for sequences of other kinds."""
        return None

    def summary(self) -> str:
        """One line for the log: the amount of data, and how much is unused."""
        totals = self.totals
        counts = {
            "truncated": totals.num_truncated,
            "skipped as too long": totals.num_too_long,
            "without a label": totals.num_unlabeled,
            "left out with the other of their pair": totals.num_left_by_pairs,
        }
        why = ", ".join(f"{plural(number, 'document')} {what}" for what, number in counts.items() if number)
        equal = totals.num_equal_pairs
        same = f", {plural(equal, 'pair')} of equal answers, which teach nothing" if equal else ""
        return (
            f"{plural(self.num_documents, 'document')}, {plural(self.num_tokens, 'token')}, "
            f"{plural(self.num_sequences, 'sequence')}; {plural(self.num_dropped_tokens, 'token')} dropped"
            f"{f' ({why})' if why else ''}, {plural(self.num_padding_tokens, 'token')} of padding{same}"
        )

    def digested(self) -> Iterator[tuple[str, Stored]]:
        """The arrays that determine inputs, labels and positions, by name; absent parts are left out."""
        yield "tokens", self.tokens
        yield "starts", self.starts
        if isinstance(self.document_starts, StoredStarts):
            yield "document_starts", self.document_starts.array
        elif self.document_starts is not None:
            yield "document_starts", self.document_starts
        if self.is_target is not None:
            yield "is_target", self.is_target

    def _bounds(self, index: int) -> tuple[int, int]:
        if not 0 <= index < self.num_sequences:
            raise IndexError(f"sequence {index} of {self.num_sequences}")
        start, stop = (int(place) for place in self.starts[index : index + 2])
        return start, stop


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LabeledDataset(PaddedDataset):
    """Sequences of one text each, with its class as the only label, at the first position. Of pairs that
    belong together each query has class 0, and its positive no label."""

    classes: Stored
    """[num_sequences]"""
    types: Stored | None = None
    """[tokens]: the types of tokens that the model is given with pairs of texts."""

    @property
    def num_padding_tokens(self) -> int:
        return self.num_sequences * self.sequence_length - self.num_tokens

    def __getitem__(self, index: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(inputs [S], labels [S]) of sequence `index`."""
        start, stop = self._bounds(index)
        inputs = np.full(self.sequence_length, self.padding_id, dtype=np.int64)
        labels = np.full(self.sequence_length, IGNORED_LABEL, dtype=np.int64)
        inputs[: stop - start] = self.tokens[start:stop]
        known = self.classes_of(index)
        labels[: len(known)] = known
        return inputs, labels

    def token_types(self, index: int) -> Positions | None:
        """[S]"""
        if self.types is None:
            return None
        start, stop = self._bounds(index)
        types = np.zeros(self.sequence_length, dtype=np.int64)
        types[: stop - start] = self.types[start:stop]
        return types

    def classes_of(self, index: int) -> npt.NDArray[np.int64]:
        """The labels of a sequence from its first position on: [1], the class of its text."""
        return self.classes[index : index + 1].astype(np.int64)

    def position_ids(self, index: int) -> Positions:
        """[S]: padding has positions of its own, as one more document: no token sees it."""
        start, stop = self._bounds(index)
        ends = [stop - start] if stop - start < self.sequence_length else []
        return restarting(np.array([0, *ends], dtype=np.int64), length=self.sequence_length)

    def summary(self) -> str:
        """One line for the log, with the classes."""
        text = PaddedDataset.summary(self)
        if IGNORED_LABEL in self.classes[:2]:
            return f"{text}; {plural(self.num_sequences // 2, 'pair')}"
        return f"{text}; classes up to {int(self.classes.max())}"

    def digested(self) -> Iterator[tuple[str, Stored]]:
        """The arrays that determine inputs and classes, by name."""
        yield "tokens", self.tokens
        yield "starts", self.starts
        yield "classes", self.classes
        if self.types is not None:
            yield "types", self.types


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class WordsDataset(LabeledDataset):
    """Sequences of one text each, with the class of each word as the label of its first token.

    `classes` are [tokens], IGNORED_LABEL where no word begins.
    """

    def classes_of(self, index: int) -> npt.NDArray[np.int64]:
        """The labels of a sequence's tokens."""
        start, stop = self._bounds(index)
        return self.classes[start:stop].astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MappedDataset(PaddedDataset):
    """Sequences of one input each, whose labels are the tokens of its target.

    `starts` are [2 * num_sequences + 1]: of each sequence the input, then the target.
    """

    @property
    def num_sequences(self) -> int:
        return (len(self.starts) - 1) // 2

    @property
    def num_padding_tokens(self) -> int:
        return 2 * self.num_sequences * self.sequence_length - self.num_tokens

    def __getitem__(self, index: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(inputs [S], labels [S]) of sequence `index`."""
        (start, stop), (first, last) = self._bounds(index), self._bounds_of_target(index)
        inputs = np.full(self.sequence_length, self.padding_id, dtype=np.int64)
        labels = np.full(self.sequence_length, IGNORED_LABEL, dtype=np.int64)
        inputs[: stop - start] = self.tokens[start:stop]
        labels[: last - first] = self.tokens[first:last]
        return inputs, labels

    def position_ids(self, index: int) -> Positions:
        """[S]: padding of the input has positions of its own, as one more document."""
        start, stop = self._bounds(index)
        ends = [stop - start] if stop - start < self.sequence_length else []
        return restarting(np.array([0, *ends], dtype=np.int64), length=self.sequence_length)

    def _bounds(self, index: int) -> tuple[int, int]:
        if not 0 <= index < self.num_sequences:
            raise IndexError(f"sequence {index} of {self.num_sequences}")
        start, stop = (int(place) for place in self.starts[2 * index : 2 * index + 2])
        return start, stop

    def _bounds_of_target(self, index: int) -> tuple[int, int]:
        first, last = (int(place) for place in self.starts[2 * index + 1 : 2 * index + 3])
        return first, last


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
) -> Totals:
    """Write the tokens of every document that has a label, and where each sequence of them starts.

    A sequence takes one token more than its length, its last label, unless its documents have classes.
    Documents `in_pairs` are kept or left out
    two by two, as they come.
    """
    require_length(sequence_length)
    length = sequence_length + 1
    shortening = _Shortening(length, too_long, kept_at_end=len(tokenizer.after))
    dtype = stored_dtype(tokenizer)
    encoded = encode(documents, tokenizer=tokenizer, bad=bad)
    kept = (shortening.kept_pairs if in_pairs else shortening.kept)(encoded, dtype=dtype)
    tokens = TokenColumns(columns, dtype=dtype)
    starts = columns.column("starts", dtype=np.dtype(np.int64))
    starts.append(np.zeros(1, dtype=np.int64))
    document_starts = StartColumns(columns) if is_shared else None
    for sequence in fitted(kept, room=length) if document_starts else ([one] for one in kept):
        for document in sequence:
            if document_starts is not None:
                document_starts.add(tokens.num_tokens)
            tokens.add(document)
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
        """Both documents of each pair, if both are kept."""
        remaining = iter(documents)
        for pair in zip(remaining, remaining, strict=True):
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
            is_skipped = is_long and self._too_long == "skip"
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
    return PaddedDataset(
        **rows,
        document_starts=document_starts,
        is_target=arrays.get("is_target"),
    )
