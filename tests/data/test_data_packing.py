"""Packing: every token is a label once, and what cannot be packed is refused."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from planc.runtime.data.dataset import check_vocabulary
from planc.runtime.data.errors import DataError
from planc.runtime.data.packing import PackedDataset, pack
from planc.runtime.data.sources import Document
from planc.runtime.data.tokenizers import ByteTokenizer


def packed(texts: Iterable[str], *, sequence_length: int) -> PackedDataset:
    found = [Document("here", text, len(text.encode("utf-8"))) for text in texts]
    return pack(found, tokenizer=ByteTokenizer(), sequence_length=sequence_length)


def stream(texts: Iterable[str]) -> list[int]:
    return [token for text in texts for token in (*text.encode("utf-8"), 256)]


def test_documents_follow_one_another_each_with_its_end() -> None:
    assert packed(["ab", "", "c"], sequence_length=2).tokens.tolist() == [97, 98, 256, 256, 99, 256]


def test_labels_are_the_next_tokens() -> None:
    dataset = packed(["abcdef"], sequence_length=3)
    inputs, labels = dataset[1]
    assert inputs.tolist() == [100, 101, 102]
    assert labels.tolist() == [101, 102, 256]
    assert inputs.dtype == labels.dtype == np.int64


@given(texts=st.lists(st.text(max_size=12), min_size=1, max_size=8), sequence_length=st.integers(1, 7))
def test_every_token_but_the_first_and_the_dropped_is_a_label_once(
    texts: list[str], sequence_length: int
) -> None:
    tokens = stream(texts)
    assume(len(tokens) > sequence_length)
    dataset = packed(texts, sequence_length=sequence_length)
    labels = [label for index in range(len(dataset)) for label in dataset[index][1].tolist()]
    inputs = [token for index in range(len(dataset)) for token in dataset[index][0].tolist()]
    assert labels == tokens[1 : 1 + len(labels)]
    assert inputs == tokens[: len(inputs)]
    assert dataset.num_dropped_tokens == len(tokens) - 1 - len(labels) < sequence_length


def test_counts() -> None:
    dataset = packed(["abcdé", "f"], sequence_length=3)
    assert (dataset.num_documents, dataset.num_text_bytes) == (2, 7)
    assert (dataset.num_tokens, dataset.num_sequences, dataset.num_dropped_tokens) == (9, 2, 2)


def test_tokens_are_stored_in_the_smallest_dtype() -> None:
    assert packed(["abc"], sequence_length=2).tokens.dtype == np.uint16
    narrow = ByteTokenizer(vocab_size=256, end_of_document=10)
    dataset = pack([Document("here", "abc", 3)], tokenizer=narrow, sequence_length=2)
    assert dataset.tokens.dtype == np.uint8


@pytest.mark.parametrize("index", [-1, 2])
def test_an_index_outside_is_an_index_error(index: int) -> None:
    dataset = packed(["abcdef"], sequence_length=3)
    with pytest.raises(IndexError):
        dataset[index]


def test_no_documents_is_an_error() -> None:
    with pytest.raises(DataError, match="no documents"):
        packed([], sequence_length=2)


def test_a_sequence_needs_one_token_more_than_its_length() -> None:
    assert len(packed(["abc"], sequence_length=3)) == 1
    with pytest.raises(DataError, match="4 tokens do not fill one sequence of 4"):
        packed(["abc"], sequence_length=4)


def test_an_empty_sequence_is_an_error() -> None:
    with pytest.raises(DataError, match="sequence_length is 0"):
        packed(["abc"], sequence_length=0)


def test_a_token_without_a_row_in_the_embedding_is_an_error() -> None:
    dataset = packed(["abc"], sequence_length=2)
    check_vocabulary(dataset, model_vocab_size=257)
    with pytest.raises(DataError, match="token id 256 is in the data, but the model has 256 token ids"):
        check_vocabulary(dataset, model_vocab_size=256)
