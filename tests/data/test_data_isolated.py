"""Documents that share a sequence and are kept apart, and documents with a sequence of their own."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from planc.data_sources.kinds import ChatSource
from planc.runtime.data.bad_documents import BadDocuments
from planc.runtime.data.chat import Conversation
from planc.runtime.data.dataset import packed
from planc.runtime.data.errors import DataError
from planc.runtime.data.packing import IGNORED_LABEL, PackedDataset, pack
from planc.runtime.data.padded import PaddedDataset
from planc.runtime.data.padding import pad
from planc.runtime.data.sources import Document
from planc.runtime.data.spec import DataSpec, Packing
from planc.runtime.data.tokenizers import ByteTokenizer, Tokenizer
from tests.data.conversing import conversation, save_tokenizer
from tests.data.tokenizing import ids_of, load_tokenizer

TEXTS = st.lists(st.text("abc", max_size=9), min_size=1, max_size=8)


def documents(texts: Iterable[str]) -> list[Document]:
    return [Document("here", text, len(text)) for text in texts]


def isolated(texts: Iterable[str], *, sequence_length: int) -> PackedDataset:
    return pack(documents(texts), tokenizer=ByteTokenizer(), sequence_length=sequence_length, isolates=True)


def padded(texts: Iterable[str], *, sequence_length: int) -> PaddedDataset:
    return pad(documents(texts), tokenizer=ByteTokenizer(), sequence_length=sequence_length)


def test_isolated_documents_have_positions_and_labels_of_their_own() -> None:
    dataset = isolated(["ab", "c", "defg"], sequence_length=8)
    inputs, labels = dataset[0]
    assert inputs.tolist() == [97, 98, 256, 99, 256, 100, 101, 102]
    assert labels.tolist() == [98, 256, IGNORED_LABEL, 256, IGNORED_LABEL, 101, 102, 103]
    assert dataset.position_ids(0).tolist() == [0, 1, 2, 0, 1, 0, 1, 2]


def test_a_document_that_goes_on_in_the_next_sequence_starts_anew_there() -> None:
    dataset = isolated(["abcdef", "g"], sequence_length=4)
    assert dataset.position_ids(1).tolist() == [0, 1, 2, 0]
    assert dataset[0][1].tolist() == [98, 99, 100, 101]


@given(texts=TEXTS, sequence_length=st.integers(1, 7))
def test_labels_of_isolated_documents_never_cross_into_the_next(
    texts: list[str], sequence_length: int
) -> None:
    assume(sum(len(text) + 1 for text in texts) > sequence_length)
    dataset = isolated(texts, sequence_length=sequence_length)
    for index in range(len(dataset)):
        inputs, labels = dataset[index]
        positions = dataset.position_ids(index)
        # No text contains the end of a document, so it marks where one ends.
        ends = inputs == 256
        assert (labels[ends] == IGNORED_LABEL).all()
        assert (labels[~ends] != IGNORED_LABEL).all()
        assert (positions[1:][ends[:-1]] == 0).all()
        assert (np.diff(positions)[~ends[:-1]] == 1).all()


@given(texts=TEXTS, sequence_length=st.integers(1, 7))
def test_one_document_a_sequence_is_cut_or_padded(texts: list[str], sequence_length: int) -> None:
    assume(any(texts))
    dataset = padded(texts, sequence_length=sequence_length)
    kept = [text for text in texts if text]
    assert len(dataset) == len(kept)
    num_held = 0
    for index, text in enumerate(kept):
        tokens = [*text.encode(), 256][: sequence_length + 1]
        inputs, labels = dataset[index]
        held = len(tokens) - 1
        assert inputs[:held].tolist() == tokens[:-1]
        assert labels.tolist() == [*tokens[1:], *[IGNORED_LABEL] * (sequence_length - held)]
        num_held += held
    assert dataset.num_padding_tokens == len(kept) * sequence_length - num_held
    assert dataset.num_tokens + dataset.num_dropped_tokens == sum(len(text) + 1 for text in texts)


def test_what_is_dropped_and_padded_is_told() -> None:
    summary = padded(["abcdefgh", "", "a"], sequence_length=4).summary()
    dropped = "5 tokens dropped (1 document truncated, 1 document without a label)"
    assert summary == f"3 documents, 7 tokens, 2 sequences; {dropped}, 3 tokens of padding"


def test_documents_without_a_label_are_no_sequences() -> None:
    with pytest.raises(DataError, match="no document of the source has a label"):
        padded(["", ""], sequence_length=4)
    with pytest.raises(DataError, match="no documents"):
        padded([], sequence_length=4)


def test_padding_is_a_token_of_the_tokenizer_and_counts_for_the_vocabulary() -> None:
    dataset = padded(["abcdefgh"], sequence_length=4)
    assert dataset.tokens.max() == ord("e")
    assert dataset.max_token_id == dataset.padding_id == 256


@pytest.mark.parametrize("index", [-1, 2])
def test_an_index_outside_is_an_index_error(index: int) -> None:
    with pytest.raises(IndexError):
        padded(["ab", "cd"], sequence_length=3)[index]


@pytest.fixture
def talking(tmp_path: Path) -> Iterator[Tokenizer]:
    """A tokenizer whose template writes the messages, and no ends of turn."""
    template = "{% for one in messages %}{% if one.role == 'assistant' %}{% generation %}{{ one.content }}" \
        "{% endgeneration %}{% else %}{{ one.content }}{% endif %}{% endfor %}"  # fmt: skip
    save_tokenizer(tmp_path / "tokenizer", template=template)
    with contextlib.closing(load_tokenizer("tokenizer", base=tmp_path, end_of_document=None)) as tokenizer:
        yield tokenizer


def talk(question: str, answer: str | None) -> Conversation:
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return conversation(messages[: 1 if answer is None else 2])


def spec_of(packing: Packing, length: int) -> DataSpec:
    return DataSpec(ChatSource(("chats.jsonl",)), "tokenizer", length, shuffle_seed=0, packing=packing)


@pytest.mark.parametrize("packing", ["attend", "isolate", "whole", "none"])
def test_only_targets_are_labels(packing: Packing, talking: Tokenizer) -> None:
    (question,), (answer,) = ids_of(talking, "QUESTION?"), ids_of(talking, "ANSWER!")
    length = len(question) + len(answer)
    spec = spec_of(packing, length)
    dataset = packed([talk("QUESTION?", "ANSWER!")] * 2, spec, tokenizer=talking, bad=BadDocuments())
    inputs, labels = dataset[0]
    assert inputs.tolist() == [*question, *answer]
    assert labels.tolist() == [*[IGNORED_LABEL] * (len(question) - 1), *answer, IGNORED_LABEL]


@pytest.mark.parametrize("packing", ["attend", "isolate"])
def test_conversations_without_an_answer_are_refused(packing: Packing, talking: Tokenizer) -> None:
    with pytest.raises(DataError, match="the data has no tokens to train on"):
        packed([talk("question", None)], spec_of(packing, 4), tokenizer=talking, bad=BadDocuments())


def test_an_end_that_a_template_wrote_is_not_repeated(talking: Tokenizer) -> None:
    expected = [token for one in ids_of(talking, "ab", "c<|endoftext|>") for token in one]
    assert expected[-1] == talking.end_of_document
    documents = [talk("ab", "c<|endoftext|>")]
    assert pack(documents, tokenizer=talking, sequence_length=2).tokens.tolist() == expected


@pytest.mark.parametrize(("texts", "length"), [(["abc"], 2), (["abcdefgh", "a"], 4)])
def test_summaries_count_one_of_a_thing_in_the_singular(texts: list[str], length: int) -> None:
    summary = padded(texts, sequence_length=length).summary()
    assert not re.search(r"(?<![\d_])1 (documents|tokens|sequences)\b", summary), summary
