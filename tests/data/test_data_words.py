"""Rows of words with classes: tokens are those of transformers, and a class is at its word's first one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from planc.data_sources.kinds import LabeledSource
from planc.runtime.data.errors import DataError
from planc.runtime.data.open import OpenData, open_data, open_prepared
from planc.runtime.data.prepared.prepare import prepare
from planc.runtime.data.prepared.wanted import want
from planc.runtime.data.spec import DataSpec
from tests.data.test_data_tokenizers import saved, trained

LENGTH, PADDING, NAMES = 8, 5, ("O", "B-PER", "B-LOC")
PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "anna", "syd", "##ney", "is", "in", "big", ".", "##s")
ROWS: list[dict[str, Any]] = [
    {"tokens": ["Anna", "is", "in", "Sydney", "."], "tags": [1, 0, 0, 2, 0]},
    {"tokens": ["Sydneys", "\u200b", "big"], "tags": ["B-LOC", "O", "O"]},
    {"tokens": ["is"], "tags": [0]},
]
"""A word of the second row has no token: the tokenizer leaves out what is invisible."""
BAD: list[tuple[dict[str, Any], str]] = [
    ({"tokens": ["a"], "tags": [0, 1]}, '"tags" of rows.jsonl:2 is 2 classes, for 1 word'),
    ({"tokens": ["a"], "tags": 1}, '"tags" of rows.jsonl:2 is no list of classes, for 1 word'),
    ({"tokens": "a b", "tags": [0, 1]}, '"tokens" of rows.jsonl:2 is not a list of words'),
    ({"tokens": ["a", 1], "tags": [0, 1]}, '"tokens" of rows.jsonl:2 is not a list of words'),
    ({"tokens": [], "tags": []}, "rows.jsonl:2 has no words"),
    (
        {"tokens": ["a", "b"], "tags": [0, 3]},
        'class 2 in "tags" of rows.jsonl:2 is 3, and the task has the classes 0 to 2',
    ),
    (
        {"tokens": ["a"], "tags": ["B-ORG"]},
        'class 1 in "tags" of rows.jsonl:2 is "B-ORG", which is not among `names` of the task',
    ),
]


def opened(folder: Path, rows: list[dict[str, Any]], **settings: Any) -> OpenData:
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return open_data(spec(**settings), base=folder, model_vocab_size=1000)


def spec(tokenizer: str = "bytes", length: int = LENGTH, skip_bad: int = 0) -> DataSpec:
    source = LabeledSource(("rows.jsonl",), 3, NAMES, field="tokens", label="tags", by_word=True)
    settings: Any = {"packing": "none", "skip_bad": skip_bad, "padding_id": PADDING}
    settings["begin_of_document"] = None if tokenizer == "bytes" else "auto"
    return DataSpec(source, tokenizer, length, shuffle_seed=0, **settings)


def word_pieces(folder: Path) -> PreTrainedTokenizerFast:
    """A tokenizer like BERT's, saved there."""
    backend = tokenizers.Tokenizer(
        models.WordPiece({piece: at for at, piece in enumerate(PIECES)}, unk_token="[UNK]")
    )
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names: Any = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    own = PreTrainedTokenizerFast(tokenizer_object=backend, **names)
    own.save_pretrained(folder)
    return own


@pytest.mark.parametrize("length", [5, 8])
def test_words_are_what_transformers_makes_of_them(tmp_path: Path, length: int) -> None:
    own = word_pieces(tmp_path / "tokenizer")
    dataset = opened(tmp_path, ROWS, tokenizer="tokenizer", length=length).dataset
    for at, row in enumerate(ROWS):
        expected = own(row["tokens"], is_split_into_words=True, truncation=True, max_length=length)
        labels, before = [], None
        for word in expected.word_ids():
            tag = None if word is None or word == before else row["tags"][word]
            labels.append(-100 if tag is None else NAMES.index(tag) if isinstance(tag, str) else tag)
            before = word
        room = length - len(labels)
        inputs, classes = dataset[at]
        assert inputs.tolist() == [*expected["input_ids"], *(PADDING,) * room]
        assert classes.tolist() == [*labels, *(-100,) * room]
    assert dataset[1][1].tolist()[:5] == [-100, 2, -100, -100, -100 if length == 5 else 0]


def test_bytes_have_a_space_between_words(tmp_path: Path) -> None:
    dataset = opened(tmp_path, [{"tokens": ["ab", "", "c"], "tags": [1, 2, 0]}]).dataset
    inputs, labels = dataset[0]
    assert inputs.tolist() == [*b"ab  c", *(PADDING,) * 3]
    assert labels.tolist() == [1, -100, -100, -100, 0, -100, -100, -100]
    assert dataset.position_ids(0).tolist() == [0, 1, 2, 3, 4, 0, 1, 2]


@pytest.mark.parametrize("row, message", BAD)
def test_other_rows_are_located_or_left_out(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as caught:
        opened(tmp_path, [ROWS[0], row, ROWS[2]])
    assert caught.value.message == message
    data = opened(tmp_path, [ROWS[0], row, ROWS[2]], skip_bad=1)
    assert (data.dataset.num_sequences, data.left_out) == (2, (message,))


def test_a_tokenizer_that_joins_words_is_refused(tmp_path: Path) -> None:
    """Without a space before a word, GPT-2's gives it the token of a word's middle."""
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    saved(trained(), folder)
    with pytest.raises(
        DataError, match="tokenizes words that are given apart unlike those of a text"
    ) as caught:
        opened(tmp_path, ROWS, tokenizer="tokenizer/tokenizer.json")
    assert "add_prefix_space" in caught.value.help


def test_prepared_rows_are_the_same(tmp_path: Path) -> None:
    alone = opened(tmp_path, ROWS)
    wanted = want(spec(), base=tmp_path)
    prepared = open_prepared(prepare(tmp_path / "data", wanted, name="rows"), wanted, model_vocab_size=1000)
    assert prepared.fingerprint == alone.fingerprint
    for number in range(len(ROWS)):
        for found, expected in zip(prepared.dataset[number], alone.dataset[number], strict=True):
            assert found.tolist() == expected.tolist()
    changed = [*ROWS[:2], {"tokens": ["is"], "tags": [1]}]
    assert opened(tmp_path, changed).fingerprint != alone.fingerprint
