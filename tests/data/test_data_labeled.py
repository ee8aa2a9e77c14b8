"""Rows of a text and a class: one a sequence, as the tokenizer writes it; errors name other rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from planc.data_sources.kinds import LabeledSource
from planc.runtime.data.errors import DataError
from planc.runtime.data.open import OpenData, open_data, open_prepared
from planc.runtime.data.prepared.prepare import prepare
from planc.runtime.data.prepared.wanted import want
from planc.runtime.data.spec import DataSpec
from tests.data.conversing import save_tokenizer

LENGTH, PADDING = 8, 5
ROWS: list[dict[str, Any]] = [
    {"text": "abc", "label": 2},
    {"text": "a text that is cut", "label": 0},
    {"text": "12345678", "label": 1},
]
BAD: list[tuple[dict[str, Any], str]] = [
    ({"text": "a"}, 'rows.jsonl:2 has no field "label"'),
    ({"text": "a", "label": 3}, '"label" of rows.jsonl:2 is 3, and the task has the classes 0 to 2'),
    ({"text": "a", "label": -1}, '"label" of rows.jsonl:2 is -1, and the task has the classes 0 to 2'),
    ({"text": "a", "label": True}, '"label" of rows.jsonl:2 is not an integer'),
    ({"text": "a", "label": 1.0}, '"label" of rows.jsonl:2 is not an integer'),
    ({"text": "a", "label": "one"}, '"label" of rows.jsonl:2 is "one", and the plan names no classes'),
    ({"text": "a", "label": [0, 1]}, '"label" of rows.jsonl:2 is a list'),
    ({"text": 1, "label": 1}, 'field "text" of rows.jsonl:2 is not a string'),
    ({"text": "", "label": 1}, "rows.jsonl:2 has no tokens"),
]


def opened(folder: Path, rows: list[dict[str, Any]], **settings: Any) -> OpenData:
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return open_data(spec(**settings), base=folder, model_vocab_size=1000)


def spec(
    tokenizer: str = "bytes", length: int = LENGTH, skip_bad: int = 0, names: tuple[str, ...] = ()
) -> DataSpec:
    source = LabeledSource(("rows.jsonl",), 3, names)
    settings: Any = {"packing": "none", "skip_bad": skip_bad, "padding_id": PADDING}
    settings["begin_of_document"] = None if tokenizer == "bytes" else "auto"
    return DataSpec(source, tokenizer, length, shuffle_seed=0, **settings)


def test_a_row_is_a_sequence_with_its_class_at_the_first_position(tmp_path: Path) -> None:
    dataset = opened(tmp_path, ROWS).dataset
    inputs, labels = dataset[0]
    assert inputs.tolist() == [*b"abc", *(PADDING,) * 5]
    assert labels.tolist() == [2, *(-100,) * 7]
    assert dataset.position_ids(0).tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    assert dataset[1][0].tolist() == [*b"a text t"]
    # One that fills a sequence is whole: no token is only a label.
    assert dataset[2][0].tolist() == [*b"12345678"] and dataset.num_dropped_tokens == 10
    assert dataset.position_ids(2).tolist() == [*range(8)]


@pytest.mark.parametrize("row, message", BAD)
def test_other_rows_are_located_or_left_out(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as caught:
        opened(tmp_path, [ROWS[0], row, ROWS[2]])
    assert caught.value.message == message
    data = opened(tmp_path, [ROWS[0], row, ROWS[2]], skip_bad=1)
    assert [int(data.dataset[number][1][0]) for number in range(2)] == [2, 1]
    assert data.left_out == (message,)


def test_a_class_may_be_named(tmp_path: Path) -> None:
    names = ("bad", "plain", "good")
    rows = [{"text": "abc", "label": "good"}, {"text": "d", "label": 0}, {"text": "e", "label": "plain"}]
    dataset = opened(tmp_path, rows, names=names).dataset
    assert [int(dataset[number][1][0]) for number in range(3)] == [2, 0, 1]
    with pytest.raises(DataError, match=r'"label" of rows\.jsonl:2 is "goood", which is not among') as caught:
        opened(tmp_path, [rows[0], {"text": "f", "label": "goood"}], names=names)
    assert caught.value.help.startswith("correct the row, or the names: bad, plain, good")


def test_a_number_in_quotes_is_no_name(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        opened(tmp_path, [{"text": "a", "label": "1"}])
    assert caught.value.help.startswith("write 1 without quotes in the row")


def test_a_text_is_what_its_tokenizer_makes_of_it(tmp_path: Path) -> None:
    folder = save_tokenizer(tmp_path / "tokenizer", template=None)
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    ids = {one["content"]: one["id"] for one in content["added_tokens"]}
    begin, end = list(ids)[:2]
    tokens = [{"SpecialToken": {"id": name, "type_id": 0}} for name in (begin, end)]
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [tokens[0], {"Sequence": {"id": "A", "type_id": 0}}, tokens[1]],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in (begin, end)},
    }
    file.write_text(json.dumps(content), encoding="utf-8")
    dataset = opened(tmp_path, ROWS, tokenizer="tokenizer", length=6).dataset
    own = PreTrainedTokenizerFast(tokenizer_file=str(file))
    for number, row in enumerate(ROWS):
        expected = own(row["text"], truncation=True, max_length=6)["input_ids"]
        assert dataset[number][0].tolist() == [*expected, *(PADDING,) * (6 - len(expected))]


def test_prepared_rows_are_the_same(tmp_path: Path) -> None:
    alone = opened(tmp_path, ROWS)
    wanted = want(spec(), base=tmp_path)
    prepared = open_prepared(prepare(tmp_path / "data", wanted, name="rows"), wanted, model_vocab_size=1000)
    assert prepared.fingerprint == alone.fingerprint
    for number in range(len(ROWS)):
        for found, expected in zip(prepared.dataset[number], alone.dataset[number], strict=True):
            assert np.array_equal(found, expected)
    changed = [*ROWS[:2], {"text": "12345678", "label": 2}]
    assert opened(tmp_path, changed).fingerprint != alone.fingerprint
