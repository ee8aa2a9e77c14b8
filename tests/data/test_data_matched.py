"""Pairs of texts that belong together: each is two sequences, which no order and no share separates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planc.data_sources.kinds import MatchedSource
from planc.runtime.data.errors import DataError
from planc.runtime.data.open import OpenData, open_data, open_prepared
from planc.runtime.data.prepared.prepare import prepare
from planc.runtime.data.prepared.wanted import want
from planc.runtime.data.spec import DataSpec, HeldOut

LENGTH, PADDING = 8, 5
ROWS: list[dict[str, Any]] = [
    {"ask": "abc", "tell": "a text that is cut"},
    {"ask": "12345678", "tell": "9"},
    *({"ask": f"q{number}", "tell": f"a{number}", "id": number} for number in range(30)),
]
BAD: list[tuple[dict[str, Any], str]] = [
    ({"ask": "a"}, 'rows.jsonl:2 has no field "tell"'),
    (
        {"ask": "a", "tell": "b", "negative": "c", "id": 1},
        'rows.jsonl:2 has keys that planc does not read in matched pairs: "negative"',
    ),
    ({"ask": "a", "tell": 1}, 'field "tell" of rows.jsonl:2 is not a string'),
    ({"ask": "a", "tell": ""}, "rows.jsonl:2 (tell) has no tokens"),
]


def spec(held_out: HeldOut | None = None, *, skip_bad: int = 0) -> DataSpec:
    source = MatchedSource(("rows.jsonl",), query="ask", positive="tell", ignore=("id",))
    settings: Any = {"packing": "none", "padding_id": PADDING, "held_out": held_out, "skip_bad": skip_bad}
    return DataSpec(source, "bytes", LENGTH, shuffle_seed=3, **settings)


def write(folder: Path, rows: list[dict[str, Any]]) -> None:
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def opened(folder: Path, rows: list[dict[str, Any]], held_out: HeldOut | None = None) -> OpenData:
    write(folder, rows)
    return open_data(spec(held_out), base=folder, model_vocab_size=1000)


def texts_of(data: OpenData) -> list[str]:
    starts, tokens = data.dataset.starts[:], data.dataset.tokens  # type: ignore[attr-defined]
    return [bytes(tokens[starts[n] : starts[n + 1]].tolist()).decode() for n in range(len(starts) - 1)]


def test_a_query_has_the_only_label_and_its_positive_follows(tmp_path: Path) -> None:
    data = opened(tmp_path, ROWS)
    query, positive = data.dataset[0], data.dataset[1]
    assert query[0].tolist() == [*b"abc", *(PADDING,) * 5] and query[1].tolist() == [0, *(-100,) * 7]
    assert positive[0].tolist() == [*b"a text t"] and positive[1].tolist() == [-100] * 8
    assert data.dataset.position_ids(0).tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    assert data.dataset.summary().endswith(f"; {len(ROWS)} pairs")


def test_the_order_is_of_pairs(tmp_path: Path) -> None:
    ids = opened(tmp_path, ROWS).order.sample_ids(0, count=2 * len(ROWS))
    assert (ids[::2] % 2 == 0).all() and (ids[1::2] == ids[::2] + 1).all()
    assert sorted(ids.tolist()) == [*range(2 * len(ROWS))] and ids.tolist() != sorted(ids.tolist())


def test_both_texts_of_a_pair_are_held_out(tmp_path: Path) -> None:
    parts = [texts_of(opened(tmp_path, ROWS, HeldOut("1/4", is_kept=is_kept))) for is_kept in (True, False)]
    pairs = [set(zip(part[::2], part[1::2], strict=True)) for part in parts]
    every = {(row["ask"][:LENGTH], row["tell"][:LENGTH]) for row in ROWS}
    assert pairs[0] | pairs[1] == every and not pairs[0] & pairs[1] and all(pairs)


@pytest.mark.parametrize("row, message", BAD)
def test_a_row_without_both_texts_is_located(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as caught:
        opened(tmp_path, [ROWS[0], row])
    assert caught.value.message == message


@pytest.mark.parametrize("row, message", BAD)
def test_a_row_that_is_left_out_leaves_the_pairs_after_it_as_they_are(
    tmp_path: Path, row: dict[str, Any], message: str
) -> None:
    whole = texts_of(opened(tmp_path, ROWS))
    write(tmp_path, [ROWS[0], row, *ROWS[1:]])
    data = open_data(spec(skip_bad=1), base=tmp_path, model_vocab_size=1000)
    assert texts_of(data) == whole and data.left_out == (message,)
    wanted = want(spec(skip_bad=1), base=tmp_path)
    stored = open_prepared(prepare(tmp_path / "prepared", wanted, name="rows"), wanted, model_vocab_size=1000)
    assert texts_of(stored) == whole and stored.left_out == (message,)


def test_prepared_files_have_the_same_pairs(tmp_path: Path) -> None:
    data = opened(tmp_path, ROWS)
    wanted = want(spec(), base=tmp_path)
    stored = open_prepared(prepare(tmp_path / "prepared", wanted, name="rows"), wanted, model_vocab_size=1000)
    assert stored.fingerprint == data.fingerprint
    for number in range(4):
        for ours, theirs in zip(stored.dataset[number], data.dataset[number], strict=True):
            assert np.array_equal(ours, theirs)
