"""Inputs with targets: each row is one sequence, whose labels are the target's tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planc.data_sources.kinds import MappedSource
from planc.data_view.look import look
from planc.data_view.parts import Part
from planc.data_view.shown import shown_sequence
from planc.runtime.data.errors import DataError
from planc.runtime.data.loader import micro_batch_of
from planc.runtime.data.open import OpenData, open_data, open_prepared
from planc.runtime.data.prepared.prepare import prepare
from planc.runtime.data.prepared.wanted import want
from planc.runtime.data.spec import DataSpec, HeldOut

LENGTH, PADDING, END = 8, 5, 256
ROWS: list[dict[str, Any]] = [
    {"text": "abc", "summary": "a target that is cut"},
    {"text": "a text that is cut", "summary": "9"},
    *({"text": f"q{number}", "summary": f"a{number}", "id": number} for number in range(30)),
]
BAD: list[tuple[dict[str, Any], str]] = [
    ({"text": "a"}, 'rows.jsonl:2 has no field "summary"'),
    ({"text": "a", "sumary": "b"}, 'rows.jsonl:2 has no field "summary"'),
    (
        {"text": "a", "summary": "b", "prompt": "c", "id": 1},
        'rows.jsonl:2 has keys that planc does not read in mapped pairs: "prompt"',
    ),
    ({"text": "a", "summary": 1}, 'field "summary" of rows.jsonl:2 is not a string'),
    ({"text": "", "summary": "a"}, "rows.jsonl:2 (text) has no tokens"),
]


def spec(held_out: HeldOut | None = None, **settings: Any) -> DataSpec:
    source = MappedSource(("rows.jsonl",), input="text", target="summary", ignore=("id",))
    settings = {"packing": "none", "padding_id": PADDING, "held_out": held_out, **settings}
    return DataSpec(source, "bytes", LENGTH, shuffle_seed=3, **settings)


def opened(folder: Path, rows: list[dict[str, Any]], **settings: Any) -> OpenData:
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    (folder / "rows.jsonl").write_text(text, encoding="utf-8")
    return open_data(spec(**settings), base=folder, model_vocab_size=1000)


def test_labels_are_the_target_with_its_end(tmp_path: Path) -> None:
    data = opened(tmp_path, ROWS)
    first, second = data.dataset[0], data.dataset[1]
    assert first[0].tolist() == [*b"abc", *(PADDING,) * 5] and first[1].tolist() == [*b"a target"]
    assert second[0].tolist() == [*b"a text t"] and second[1].tolist() == [*b"9", END, *(-100,) * 6]
    assert data.dataset.position_ids(0).tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    assert data.dataset.position_ids(1).tolist() == [*range(8)]
    assert data.dataset.num_sequences == len(ROWS)
    batch = micro_batch_of(data.dataset, np.array([1, 0]))
    assert batch.inputs[1].tolist() == first[0].tolist() and batch.labels[0].tolist() == second[1].tolist()


def test_every_row_is_seen_once_an_epoch(tmp_path: Path) -> None:
    ids = opened(tmp_path, ROWS).order.sample_ids(0, count=len(ROWS))
    assert sorted(ids.tolist()) == [*range(len(ROWS))] and ids.tolist() != sorted(ids.tolist())


def test_an_input_is_held_out_with_its_target(tmp_path: Path) -> None:
    def rows_of(is_kept: bool) -> set[tuple[bytes, bytes]]:
        dataset = opened(tmp_path, ROWS, held_out=HeldOut("1/4", is_kept=is_kept)).dataset
        rows = (dataset[number] for number in range(dataset.num_sequences))
        return {(row[0].tobytes(), row[1].tobytes()) for row in rows}

    held, others = rows_of(True), rows_of(False)
    assert held and others and not held & others and len(held | others) == len(ROWS)


def test_long_rows_may_be_left_out(tmp_path: Path) -> None:
    dataset = opened(tmp_path, ROWS, too_long="skip").dataset
    assert dataset.num_sequences == len(ROWS) - 2 and dataset[0][0].tolist()[:2] == [*b"q0"]


@pytest.mark.parametrize("row, message", BAD)
def test_a_row_without_both_texts_is_located(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as caught:
        opened(tmp_path, [ROWS[0], row])
    assert caught.value.message == message


def test_a_sequence_is_shown_without_its_padding(tmp_path: Path) -> None:
    opened(tmp_path, ROWS)
    # No byte, which bytes could not decode.
    part = Part("training", want(spec(padding_id=258), base=tmp_path), vocab_size=1000, span=None)
    data = open_data(spec(padding_id=258), base=tmp_path, model_vocab_size=1000)
    shown = shown_sequence(data, 2, before=0, part=part, tokenizer=part.wanted.tokenizer.load())
    assert bytes(shown.ids[:8]) == b"a text t" and shown.ids[8:] == [*b"9", END]
    assert shown.trained == [False] * 8 + [True] * 2
    assert shown_sequence(data, 1, before=0, part=part, tokenizer=part.wanted.tokenizer.load()).ids[:4] == [
        *b"abca"
    ]


def test_a_row_without_tokens_leaves_no_other_without_its_own(tmp_path: Path) -> None:
    bad = [{"text": "", "summary": "lost"}]
    whole, less = (opened(tmp_path, rows, skip_bad=1) for rows in (ROWS, [ROWS[0], *bad, *ROWS[1:]]))
    assert less.left_out == ("rows.jsonl:2 (text) has no tokens",)
    assert less.dataset.num_sequences == whole.dataset.num_sequences
    for number in range(len(ROWS)):
        for ours, theirs in zip(less.dataset[number], whole.dataset[number], strict=True):
            assert np.array_equal(ours, theirs)
    assert look(Part("training", want(spec(), base=tmp_path), vocab_size=1000, span=None)).faults


def test_prepared_files_have_the_same_rows(tmp_path: Path) -> None:
    data = opened(tmp_path, ROWS)
    wanted = want(spec(), base=tmp_path)
    stored = open_prepared(prepare(tmp_path / "prepared", wanted, name="rows"), wanted, model_vocab_size=1000)
    assert stored.fingerprint == data.fingerprint and stored.dataset.num_sequences == len(ROWS)
    for number in range(4):
        for ours, theirs in zip(stored.dataset[number], data.dataset[number], strict=True):
            assert np.array_equal(ours, theirs)


def test_a_sample_has_the_sequences_of_a_run(tmp_path: Path) -> None:
    data = opened(tmp_path, ROWS)
    found = look(Part("training", want(spec(), base=tmp_path), vocab_size=1000, span=None))
    assert found.sequences_per_epoch == data.dataset.num_sequences
    first, second = found.rows[:2]
    assert not any(first.trained) and all(second.trained)
    assert first.notes == ("an input",)
    assert second.notes[-1] == "the target of the input before it"
