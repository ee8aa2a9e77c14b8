"""Documents to sequences of one length, whole and in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planc.runtime.data.errors import DataError
from planc.runtime.data.sources import Document
from planc.runtime.data.tokenizers import Tokenizer

StoredTokens = npt.NDArray[np.uint8] | npt.NDArray[np.uint16] | npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True, eq=False)
class PackedDataset:
    """Tokens of all documents end to end, cut into sequences; attention sees across documents ("attend").

    Sequence i reads tokens [i*S, i*S + S] for S = `sequence_length`: neighbours share one token, so every
    token but the first is a label once. What is left at the end is dropped.
    """

    tokens: StoredTokens
    sequence_length: int
    num_documents: int
    num_text_bytes: int
    """Length of all documents in UTF-8."""

    @property
    def num_tokens(self) -> int:
        """All tokens, ends of documents and dropped ones included."""
        return len(self.tokens)

    @property
    def num_sequences(self) -> int:
        return (self.num_tokens - 1) // self.sequence_length

    @property
    def num_dropped_tokens(self) -> int:
        """Tokens at the end that are in no sequence, fewer than `sequence_length`."""
        return self.num_tokens - (self.num_sequences * self.sequence_length + 1)

    @property
    def max_token_id(self) -> int:
        return int(self.tokens.max())

    def __len__(self) -> int:
        return self.num_sequences

    def __getitem__(self, index: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(inputs [S], labels [S]) of sequence `index`; the label of a position is the token after it."""
        if not 0 <= index < self.num_sequences:
            raise IndexError(f"sequence {index} of {self.num_sequences}")
        start = index * self.sequence_length
        window = self.tokens[start : start + self.sequence_length + 1].astype(np.int64)
        return window[:-1], window[1:]


def pack(documents: Iterable[Document], *, tokenizer: Tokenizer, sequence_length: int) -> PackedDataset:
    """The documents as sequences of `sequence_length` tokens. Raises DataError if not even one is full."""
    if sequence_length < 1:
        raise DataError(f"sequence_length is {sequence_length}", help="sequence_length is 1 token or more")
    dtype = np.min_scalar_type(tokenizer.vocab_size - 1)
    end = np.array([tokenizer.end_of_document], dtype=dtype).tobytes()
    # One growing buffer: joining a list of arrays would hold all tokens twice.
    stored = bytearray()
    num_documents = num_text_bytes = 0
    for document in documents:
        stored += tokenizer.encode(document.text).astype(dtype).tobytes()
        stored += end
        num_documents += 1
        num_text_bytes += document.num_bytes
    tokens: StoredTokens = np.frombuffer(stored, dtype=dtype)
    dataset = PackedDataset(tokens, sequence_length, num_documents, num_text_bytes)
    _check_one_sequence(dataset)
    return dataset


def _check_one_sequence(dataset: PackedDataset) -> None:
    if dataset.num_documents == 0:
        raise DataError("the source has no documents", help="use a source that holds text")
    if dataset.num_sequences < 1:
        raise DataError(
            f"{dataset.num_tokens} tokens do not fill one sequence of {dataset.sequence_length}",
            help="add text, or lower sequence_length: a sequence takes one token more, its last label",
        )


def check_vocabulary(dataset: PackedDataset, *, model_vocab_size: int) -> None:
    """Raises DataError if a token has no row in the model's embedding."""
    if dataset.max_token_id >= model_vocab_size:
        raise DataError(
            f"token id {dataset.max_token_id} is in the data, but the model has {model_vocab_size} token ids",
            help="use the model's own tokenizer, or a model whose vocab_size is larger",
        )
