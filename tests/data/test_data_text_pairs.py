"""Rows of two texts and a class: tokens, types and truncation are those of transformers' tokenizers."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from planc.data_sources.kinds import LabeledSource
from planc.data_view.shown import shown_documents
from planc.runtime.data.documents import spec_documents
from planc.runtime.data.errors import DataError
from planc.runtime.data.open import OpenData, open_data, open_prepared
from planc.runtime.data.packing import encode
from planc.runtime.data.prepared.prepare import prepare
from planc.runtime.data.prepared.wanted import want
from planc.runtime.data.spec import DataSpec
from tests.data.conversing import save_tokenizer

PADDING, TYPES = 5, 3
ROWS: list[dict[str, Any]] = [
    {"premise": first, "hypothesis": second, "label": number % 3}
    for number, (first, second) in enumerate(
        ("abcdefghi"[:first], "123456789"[:second]) for first in (1, 2, 5, 6, 9) for second in (1, 2, 5, 6, 9)
    )
]
TEMPLATES = {
    "bert": ("<|im_start|> $A </s>", "<|im_start|> $A </s> $B:1 </s>:1", True),
    "roberta": ("<|im_start|> $A </s>", "<|im_start|> $A </s> </s> $B </s>", False),
    "llama": ("<|im_start|> $A", "<|im_start|> $A <|im_start|>:1 $B:1", False),
    "xlnet": ("$A </s> <|im_end|>:2", "$A </s> $B:1 </s>:1 <|im_end|>:2", True),
    "plain": ("$A", "$A $B:1", True),
}
"""What a tokenizer puts around one text and two, with types, and whether it returns them."""


def saved(folder: Path, name: str) -> Path:
    """A tokenizer's folder with one of the templates."""
    single, pair, has_types = TEMPLATES[name]
    save_tokenizer(folder, template=None)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    special = [(token, tokenizer.token_to_id(token)) for token in ("<|im_start|>", "<|im_end|>", "</s>")]
    tokenizer.post_processor = TemplateProcessing(single=single, pair=pair, special_tokens=special)  # type: ignore[assignment]
    tokenizer.save(str(folder / "tokenizer.json"))
    file = folder / "tokenizer_config.json"
    names = ["input_ids", *(["token_type_ids"] if has_types else []), "attention_mask"]
    config = json.loads(file.read_text(encoding="utf-8")) | {"model_input_names": names}
    file.write_text(json.dumps(config), encoding="utf-8")
    return folder


PAIRS = LabeledSource(("rows.jsonl",), 3, field="premise", pair="hypothesis")


def spec(
    length: int, *, tokenizer: str = "bytes", skip_bad: int = 0, source: LabeledSource = PAIRS, **changes: Any
) -> DataSpec:
    settings: dict[str, Any] = {"packing": "none", "padding_id": PADDING, "token_types": TYPES}
    settings["begin_of_document"] = None if tokenizer == "bytes" else "auto"
    return DataSpec(source, tokenizer, length, 0, skip_bad=skip_bad, **settings | changes)


def written(folder: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return folder


def opened(folder: Path, length: int = 12, **settings: Any) -> OpenData:
    return open_data(spec(length, **settings), base=folder, model_vocab_size=1000)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_pair_is_what_its_tokenizer_makes_of_it(name: str, tmp_path: Path) -> None:
    own: Any = AutoTokenizer.from_pretrained(saved(tmp_path / "tokenizer", name))
    num_cut = 0
    for length in (7, 8, 9, 14, 40):
        dataset = opened(written(tmp_path), length, tokenizer="tokenizer").dataset
        for number, row in enumerate(ROWS):
            expected = own(row["premise"], row["hypothesis"], truncation=True, max_length=length)
            ids, types = expected["input_ids"], expected.get("token_type_ids", [0] * length)
            padding = length - len(ids)
            inputs, labels = dataset[number]
            assert inputs.tolist() == [*ids, *(PADDING,) * padding]
            found = dataset.token_types(number)
            assert found is not None and found.tolist() == [*types[: len(ids)], *(0,) * padding]
            assert labels.tolist() == [row["label"], *(-100,) * (length - 1)]
            num_cut += len(own(row["premise"], row["hypothesis"])["input_ids"]) > length
    assert num_cut > len(ROWS)


def test_written_tokens_replace_those_at_the_ends(tmp_path: Path) -> None:
    saved(tmp_path / "tokenizer", "bert")
    settings: dict[str, Any] = {"begin_of_document": None, "end_of_document": "<|endoftext|>"}
    data = opened(
        written(tmp_path, [ROWS[0] | {"premise": "a", "hypothesis": "b"}]),
        6,
        tokenizer="tokenizer",
        **settings,
    )
    own: Any = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    tokens = own.convert_ids_to_tokens(data.dataset[0][0].tolist()[:4])
    assert tokens == ["a", "</s>", "b", "<|endoftext|>"]
    types = data.dataset.token_types(0)
    assert types is not None and types.tolist() == [0, 0, 1, 1, 0, 0]
    assert data.marks == "pairs are TEXT </s> (3) SECOND TEXT <|endoftext|> (0), with the types 0 and 1"


def test_bytes_have_the_end_of_a_document_between_texts(tmp_path: Path) -> None:
    dataset = opened(written(tmp_path, [{"premise": "ab", "hypothesis": "cde", "label": 1}]), 8).dataset
    types = dataset.token_types(0)
    assert dataset[0][0].tolist() == [*b"ab", 256, *b"cde", PADDING, PADDING]
    assert types is not None and types.tolist() == [0, 0, 0, 1, 1, 1, 0, 0]


def test_models_without_types_are_given_none(tmp_path: Path) -> None:
    assert opened(written(tmp_path), token_types=0).dataset.token_types(0) is None


def test_types_that_the_model_lacks_are_an_error(tmp_path: Path) -> None:
    saved(tmp_path / "tokenizer", "xlnet")
    with pytest.raises(DataError, match="makes tokens of type 2, and the model has 2 types"):
        opened(written(tmp_path), tokenizer="tokenizer", token_types=2)


def test_a_sequence_must_hold_a_token_of_each(tmp_path: Path) -> None:
    saved(tmp_path / "tokenizer", "bert")
    with pytest.raises(DataError, match="a sequence of 4 has no room for two texts: 3 of its tokens"):
        opened(written(tmp_path), 4, tokenizer="tokenizer")


BAD: list[tuple[dict[str, Any], str]] = [
    ({"premise": "a", "label": 1}, 'rows.jsonl:2 has no field "hypothesis"'),
    ({"premise": "a", "hypothesis": None, "label": 1}, 'field "hypothesis" of rows.jsonl:2 is not a string'),
    ({"premise": ["a"], "hypothesis": "b", "label": 1}, 'field "premise" of rows.jsonl:2 is not a string'),
    (
        {"premise": "a", "hypothesis": "b", "label": 3},
        '"label" of rows.jsonl:2 is 3, and the task has the classes 0 to 2',
    ),
    (
        {"premise": "a", "hypothesis": "\ud800", "label": 1},
        "rows.jsonl:2 holds a lone surrogate at character 0",
    ),
]


@pytest.mark.parametrize("row, message", BAD)
def test_other_rows_are_located_or_left_out(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    written(tmp_path, [ROWS[0], row, ROWS[1]])
    with pytest.raises(DataError) as caught:
        opened(tmp_path)
    assert caught.value.message == message
    data = opened(tmp_path, skip_bad=1)
    assert (data.dataset.num_sequences, data.left_out) == (2, (message,))


def test_a_tokenizer_without_one_template_for_pairs_is_refused(tmp_path: Path) -> None:
    """Its template puts the second text first."""
    folder = save_tokenizer(tmp_path / "tokenizer", template=None)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = TemplateProcessing(single="$A", pair="$B $A", special_tokens=[])  # type: ignore[assignment]
    tokenizer.save(str(folder / "tokenizer.json"))
    with pytest.raises(DataError, match="puts different tokens around different pairs of texts"):
        opened(written(tmp_path), tokenizer="tokenizer")


@pytest.mark.parametrize("tokenizer", ["bytes", "tokenizer"])
def test_prepared_pairs_are_the_same(tmp_path: Path, tokenizer: str) -> None:
    saved(tmp_path / "tokenizer", "bert")
    alone = opened(written(tmp_path), tokenizer=tokenizer)
    wanted = want(spec(12, tokenizer=tokenizer), base=tmp_path)
    prepared = open_prepared(prepare(tmp_path / "data", wanted, name="rows"), wanted, model_vocab_size=1000)
    assert prepared.fingerprint == alone.fingerprint
    for number in range(len(ROWS)):
        for found, expected in zip(prepared.dataset[number], alone.dataset[number], strict=True):
            assert np.array_equal(found, expected)
        types, expected_types = (one.dataset.token_types(number) for one in (prepared, alone))
        assert types is not None and expected_types is not None and np.array_equal(types, expected_types)


def test_changed_seconds_are_other_data(tmp_path: Path) -> None:
    first = opened(written(tmp_path)).fingerprint
    changed = [*ROWS[:-1], ROWS[-1] | {"hypothesis": "other"}]
    assert opened(written(tmp_path, changed)).fingerprint != first
    alone = LabeledSource(("rows.jsonl",), 3, field="premise")
    assert want(spec(12), base=tmp_path).key != want(spec(12, source=alone), base=tmp_path).key


def test_a_row_is_shown_as_a_sequence_has_it(tmp_path: Path) -> None:
    saved(tmp_path / "tokenizer", "bert")
    wanted = want(spec(7, tokenizer="tokenizer"), base=written(tmp_path))
    with contextlib.closing(wanted.tokenizer.load(num_processes=1)) as tokenizer:
        documents = list(encode(spec_documents(wanted.spec, base=tmp_path), tokenizer=tokenizer))
        rows = shown_documents(documents, spec=wanted.spec, tokenizer=tokenizer)
    dataset = opened(tmp_path, 7, tokenizer="tokenizer").dataset
    for number, row in enumerate(rows):
        assert row.ids == dataset[number][0].tolist()[: len(row.ids)]
    assert rows[-1].notes == (
        "pair: texts of 8 and 9 tokens",
        "truncated: 20 tokens, and a sequence holds 7",
        "types: 0 of 4 tokens, 1 of 3 tokens",
        f"class {ROWS[-1]['label']}",
    )


def test_a_truncated_text_is_shown_with_its_end(tmp_path: Path) -> None:
    saved(tmp_path / "tokenizer", "bert")
    alone = LabeledSource(("rows.jsonl",), 3, field="premise")
    wanted = want(spec(7, tokenizer="tokenizer", source=alone), base=written(tmp_path))
    with contextlib.closing(wanted.tokenizer.load(num_processes=1)) as tokenizer:
        documents = list(encode(spec_documents(wanted.spec, base=tmp_path), tokenizer=tokenizer))
        (*_, last) = shown_documents(documents, spec=wanted.spec, tokenizer=tokenizer)
    assert last.tokens[0] == "<|im_start|>" and last.tokens[-1] == "</s>"
