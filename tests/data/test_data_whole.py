"""Packing "whole": no document is divided between sequences, and none sees another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planc.runtime.data.packing import IGNORED_LABEL
from planc.runtime.data.padded import PaddedDataset
from planc.runtime.data.padding import best_fit, fitted, pad
from planc.runtime.data.sources import Document
from planc.runtime.data.spec import TooLong
from planc.runtime.data.tokenizers import ByteTokenizer
from tests.data.first_fit import (
    DISTRIBUTIONS,
    best_fit_decreasing,
    first_fit_decreasing,
    lengths_of,
)
from tests.data.packing_measured import measured

END = 256
TEXTS = st.lists(st.text("abc", max_size=14), min_size=1, max_size=12).filter(any)


def whole(texts: Iterable[str], *, sequence_length: int, too_long: TooLong = "truncate") -> PaddedDataset:
    return pad(
        [Document("here", text, len(text)) for text in texts],
        tokenizer=ByteTokenizer(),
        sequence_length=sequence_length,
        is_shared=True,
        too_long=too_long,
    )


def documents_of(dataset: PaddedDataset) -> list[list[tuple[int, ...]]]:
    """The documents of each sequence, read off its inputs, labels and positions alone."""
    found = []
    for index in range(len(dataset)):
        inputs, labels = dataset[index]
        (starts,) = np.nonzero(dataset.position_ids(index) == 0)
        parts = []
        for start, stop in zip(starts, [*starts[1:], len(inputs)], strict=True):
            trained = labels[start:stop]
            if (trained == IGNORED_LABEL).all():
                # Padding: a document has a label.
                assert stop == len(inputs) and (inputs[start:stop] == dataset.padding_id).all()
                continue
            number = int((trained != IGNORED_LABEL).sum())
            assert (trained[:number] != IGNORED_LABEL).all(), "every token but the first is predicted"
            parts.append((int(inputs[start]), *trained[:number].tolist()))
            assert inputs[start : start + number].tolist() == list(parts[-1][:-1])
        found.append(parts)
    return found


@given(texts=TEXTS, sequence_length=st.integers(1, 15))
def test_every_document_is_in_one_sequence_from_its_start(texts: list[str], sequence_length: int) -> None:
    dataset = whole(texts, sequence_length=sequence_length)
    expected = Counter((*text.encode(), END)[: sequence_length + 1] for text in texts if text)
    assert Counter(one for parts in documents_of(dataset) for one in parts) == expected
    assert dataset.totals.num_truncated == sum(len(text) > sequence_length for text in texts)
    assert dataset.totals.num_unlabeled == texts.count("")
    held = sum(len(one) * number for one, number in expected.items())
    assert dataset.num_dropped_tokens == sum(len(text) + 1 for text in texts) - held


@given(texts=TEXTS.filter(lambda texts: any(0 < len(text) <= 3 for text in texts)))
def test_a_document_that_is_too_long_is_skipped(texts: list[str]) -> None:
    dataset = whole(texts, sequence_length=3, too_long="skip")
    expected = Counter((*text.encode(), END) for text in texts if 0 < len(text) <= 3)
    assert Counter(one for parts in documents_of(dataset) for one in parts) == expected
    num_long = sum(len(text) > 3 for text in texts)
    assert (dataset.totals.num_too_long, dataset.totals.num_truncated) == (num_long, 0)


def test_what_is_skipped_is_told() -> None:
    summary = whole(["abcdefgh", "", "a", "bc"], sequence_length=4, too_long="skip").summary()
    dropped = "10 tokens dropped (1 document skipped as too long, 1 document without a label)"
    assert summary == f"4 documents, 5 tokens, 1 sequence; {dropped}, 0 tokens of padding"


def test_padding_is_apart_from_the_documents() -> None:
    dataset = whole(["ab", "cd"], sequence_length=9)
    assert dataset[0][0].tolist() == [97, 98, END, 99, 100, END, END, END, END]
    ignored = IGNORED_LABEL
    assert dataset[0][1].tolist() == [98, END, ignored, 100, END, *[ignored] * 4]
    assert dataset.position_ids(0).tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2]


@given(lengths=st.lists(st.integers(1, 20), max_size=40))
def test_bins_are_those_of_best_fit_decreasing(lengths: list[int]) -> None:
    bins = best_fit(lengths, room=20)
    assert sorted(index for one in bins for index in one) == list(range(len(lengths)))
    assert all(sum(lengths[index] for index in one) <= 20 for one in bins)
    assert len(bins) == best_fit_decreasing(lengths, room=20)


@given(lengths=st.lists(st.integers(1, 20), max_size=60), window=st.integers(1, 200))
def test_a_window_of_any_size_keeps_every_item_once(lengths: list[int], window: int) -> None:
    items = [
        range(number, number + length) for number, length in zip(range(0, 6_000, 100), lengths, strict=False)
    ]
    bins = list(fitted(items, room=20, window=window))
    assert sorted((one for bin in bins for one in bin), key=lambda one: one.start) == items
    assert all(sum(map(len, one)) <= 20 for one in bins)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_window_costs_few_sequences(name: str) -> None:
    room = 1 << 16
    lengths = [min(room, length) for length in lengths_of(name, length=room, count=4_000)]
    bins = sum(1 for _ in fitted([range(length) for length in lengths], room=room))
    assert bins <= 1.02 * first_fit_decreasing(lengths, room=room)


def test_no_label_of_a_conversation_is_without_its_start(tmp_path: Path) -> None:
    """Against transformers' own ids: `python -m tests.data.packing_measured` prints all distributions."""
    found = measured("uniform", folder=tmp_path, length=160, count=150)
    assert (found.num_labels > 1_000, found.num_without_start) == (True, 0)
    assert found.num_without_start_isolated > 1_000
    assert found.num_sequences == found.best_fit <= 1.02 * found.first_fit
