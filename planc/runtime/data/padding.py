"""One document per sequence: longer ones are cut, shorter ones are padded with ignored labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planc.runtime.data.bad_documents import BadDocuments
from planc.runtime.data.chat import AnyDocument
from planc.runtime.data.columns import Columns, MemoryColumns, Totals
from planc.runtime.data.errors import DataError
from planc.runtime.data.packing import (
    IGNORED_LABEL,
    Positions,
    Stored,
    encode,
    require_length,
    stored_dtype,
)
from planc.runtime.data.tokenizers import Tokenizer
from planc.tables import plural


@dataclass(frozen=True, slots=True, eq=False)
class PaddedDataset:
    """Documents, each cut to at most `sequence_length` + 1 tokens: sequence i is document i.

    Attention is causal, so padding after a document does not change it, and needs no mask.
    """

    tokens: Stored
    """The tokens of all documents that are kept, end to end."""
    starts: Stored
    """[num_sequences + 1]: document i is tokens [starts[i], starts[i + 1])."""
    sequence_length: int
    padding_id: int
    num_documents: int
    """All documents that were read, including those without a label."""
    num_text_bytes: int
    num_dropped_tokens: int
    """Tokens cut off long documents, and those of documents without a label."""
    is_target: Stored | None = None
    """Which tokens may be labels; None for all."""

    @property
    def num_tokens(self) -> int:
        """All tokens that are kept, without padding."""
        return len(self.tokens)

    @property
    def num_sequences(self) -> int:
        return len(self.starts) - 1

    @property
    def num_padding_tokens(self) -> int:
        """Positions of all sequences that hold padding."""
        return self.num_sequences * self.sequence_length - (self.num_tokens - self.num_sequences)

    @property
    def max_token_id(self) -> int:
        return max(int(self.tokens.max()), self.padding_id)

    def __len__(self) -> int:
        return self.num_sequences

    def __getitem__(self, index: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(inputs [S], labels [S]) of document `index`; the label of a position is the token after it."""
        if not 0 <= index < self.num_sequences:
            raise IndexError(f"sequence {index} of {self.num_sequences}")
        start, stop = (int(place) for place in self.starts[index : index + 2])
        inputs = np.full(self.sequence_length, self.padding_id, dtype=np.int64)
        labels = np.full(self.sequence_length, IGNORED_LABEL, dtype=np.int64)
        held = stop - start - 1
        inputs[:held] = self.tokens[start : stop - 1]
        labels[:held] = self.tokens[start + 1 : stop]
        if self.is_target is not None:
            labels[:held][~self.is_target[start + 1 : stop]] = IGNORED_LABEL
        return inputs, labels

    def position_ids(self, index: int) -> Positions:
        """[S]: positions in the sequence."""
        return np.arange(self.sequence_length, dtype=np.int64)

    def summary(self) -> str:
        """One line for the log: the amount of data, and how much is unused."""
        return (
            f"{plural(self.num_documents, 'document')}, {plural(self.num_tokens, 'token')}, "
            f"{plural(self.num_sequences, 'sequence')}; {plural(self.num_dropped_tokens, 'token')} dropped, "
            f"{plural(self.num_padding_tokens, 'token')} of padding"
        )

    def digested(self) -> Iterator[tuple[str, Stored]]:
        """The arrays that determine inputs, labels and positions, by name; absent parts are left out."""
        yield "tokens", self.tokens
        yield "starts", self.starts
        if self.is_target is not None:
            yield "is_target", self.is_target


def pad(
    documents: Iterable[AnyDocument],
    *,
    tokenizer: Tokenizer,
    sequence_length: int,
    bad: BadDocuments | None = None,
) -> PaddedDataset:
    """A sequence for every document that has a label, in memory. Raises DataError if none has one."""
    columns = MemoryColumns()
    totals = cut(documents, tokenizer=tokenizer, sequence_length=sequence_length, columns=columns, bad=bad)
    end = tokenizer.end_of_document
    return padded(columns.arrays(), totals=totals, sequence_length=sequence_length, padding_id=end)


def cut(
    documents: Iterable[AnyDocument],
    *,
    tokenizer: Tokenizer,
    sequence_length: int,
    columns: Columns,
    bad: BadDocuments | None = None,
) -> Totals:
    """Write the tokens of every document that has a label, cut to one sequence, and where each starts."""
    require_length(sequence_length)
    tokens = columns.column("tokens", dtype=stored_dtype(tokenizer))
    starts = columns.column("starts", dtype=np.dtype(np.int64))
    starts.append(np.zeros(1, dtype=np.int64))
    num_documents = num_text_bytes = num_tokens = num_dropped_tokens = 0
    for encoded in encode(documents, tokenizer=tokenizer, bad=bad):
        num_documents += 1
        num_text_bytes += encoded.num_text_bytes
        kept = min(len(encoded.tokens), sequence_length + 1)
        is_target = None if encoded.is_target is None else encoded.is_target[:kept]
        if kept < 2 or (is_target is not None and not is_target[1:].any()):
            num_dropped_tokens += len(encoded.tokens)
            continue
        num_dropped_tokens += len(encoded.tokens) - kept
        num_tokens += kept
        tokens.append(encoded.tokens[:kept])
        starts.append(np.array([num_tokens], dtype=np.int64))
        if is_target is not None:
            columns.column("is_target", dtype=np.dtype(np.bool_)).append(is_target)
    return Totals(num_documents, num_text_bytes, num_dropped_tokens)


def padded(
    arrays: Mapping[str, Stored], *, totals: Totals, sequence_length: int, padding_id: int
) -> PaddedDataset:
    """The dataset of arrays that `cut` has written. Raises DataError if it has no sequence."""
    if len(arrays["starts"]) == 1:
        has_documents = totals.num_documents > 0
        fault = "no document of the source has a label" if has_documents else "the source has no documents"
        raise DataError(fault, help="use a source that holds text; a document needs two tokens or more")
    return PaddedDataset(
        tokens=arrays["tokens"],
        starts=arrays["starts"],
        sequence_length=sequence_length,
        padding_id=padding_id,
        num_documents=totals.num_documents,
        num_text_bytes=totals.num_text_bytes,
        num_dropped_tokens=totals.num_dropped_tokens,
        is_target=arrays.get("is_target"),
    )
