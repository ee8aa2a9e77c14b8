"""Pairs of answers: what a row becomes, what is refused, and which sequences are next to each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from planc.data_sources.kinds import PairsSource
from planc.runtime.data.errors import DataError
from planc.runtime.data.open import OpenData, open_data
from planc.runtime.data.packing import IGNORED_LABEL
from planc.runtime.data.spec import DataSpec, HeldOut, TooLong
from tests.data.conversing import TEMPLATE, save_tokenizer

QUESTION = {"role": "user", "content": "Where?"}


def answer(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def opened(
    rows: list[dict[str, Any]],
    folder: Path,
    *,
    tokenizer: str = "bytes",
    too_long: TooLong = "skip",
    held_out: HeldOut | None = None,
    skip_bad: int = 0,
) -> OpenData:
    (folder / "p.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    source = PairsSource(("p.jsonl",), template="none" if tokenizer == "bytes" else "auto")
    settings: Any = {"packing": "none", "too_long": too_long, "held_out": held_out, "skip_bad": skip_bad}
    spec = DataSpec(source, tokenizer, 64, 3, **settings)
    return open_data(spec, base=folder, model_vocab_size=400)


def labels_of(data: OpenData) -> list[list[int]]:
    rows = (data.dataset[index][1] for index in range(data.dataset.num_sequences))
    return [[*map(int, row[row != IGNORED_LABEL])] for row in rows]


def prompts_of(data: OpenData) -> list[list[int]]:
    rows = (data.dataset[index] for index in range(data.dataset.num_sequences))
    return [inputs[: int(np.argmax(labels != IGNORED_LABEL)) + 1].tolist() for inputs, labels in rows]


def test_only_answers_and_their_ends_are_labels(tmp_path: Path) -> None:
    data = opened([{"prompt": "p: ", "chosen": "yes", "rejected": "non"}], tmp_path)
    assert labels_of(data) == [[*b"yes", 256], [*b"non", 256]]
    assert bytes(data.dataset[1][0][:6].tolist()) == b"p: non"


def test_answers_begin_with_the_prompt_that_their_lists_share(tmp_path: Path) -> None:
    save_tokenizer(tmp_path / "tokenizer")
    given = {"chosen": [answer("Left.")], "rejected": [answer("Right."), QUESTION, answer("There.")]}
    whole = {name: [QUESTION, *messages] for name, messages in given.items()}
    apart, shared = (
        opened([row], tmp_path, tokenizer="tokenizer", too_long="truncate")
        for row in ({"prompt": [QUESTION], **given}, whole)
    )
    assert labels_of(apart) == labels_of(shared)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer" / "tokenizer.json"))
    text = tokenizer.decode(labels_of(apart)[0], skip_special_tokens=False)
    assert text == "Left.<|im_end|>\n"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "p", "chosen": "a"}, 'has no "rejected"'),
        ({"chosen": "a", "rejected": "b"}, 'has no "prompt"'),
        ({"prompt": "p", "chosen": " ", "rejected": "b"}, '"chosen" of p.jsonl'),
        ({"prompt": "p", "chosen": [answer("")], "rejected": [answer("b")]}, "is empty"),
        ({"prompt": "p", "chosen": [answer("a")], "rejected": "b"}, "mixes texts with lists"),
        ({"prompt": "p", "chosen": 3, "rejected": "b"}, "neither a text nor a list"),
        ({"prompt": "p", "chosen": "a", "rejected": "b", "score": 1}, 'does not read in pairs: "score"'),
        ({"chosen": [answer("a")], "rejected": [answer("b")]}, "begin with different messages"),
    ],
)
def test_rows_that_are_not_pairs_are_refused(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        opened([row], tmp_path)
    assert message in caught.value.message
    assert "p.jsonl" in caught.value.message


def test_pairs_are_kept_or_left_out_whole_and_counted(tmp_path: Path) -> None:
    rows = [
        {"prompt": "a", "chosen": "x" * 99, "rejected": "y"},
        {"prompt": "b", "chosen": "same", "rejected": "same"},
        {"prompt": "c", "chosen": "x", "rejected": "y" * 99},
        {"prompt": "d" * 70, "chosen": "x", "rejected": "y"},
        {"prompt": "e", "chosen": "x", "rejected": "y"},
    ]
    data = opened(rows, tmp_path)
    assert labels_of(data) == [[*b"same", 256], [*b"same", 256], [*b"x", 256], [*b"y", 256]]
    summary = data.dataset.summary()
    assert "4 documents skipped as too long, 2 documents left out with the other of their pair" in summary
    assert "1 pair of equal answers, which teach nothing" in summary
    cut = opened(rows, tmp_path, too_long="truncate")
    assert cut.dataset.num_sequences == 8
    assert "2 documents truncated, 2 documents without a label" in cut.dataset.summary()


@pytest.mark.parametrize("bad", ["chosen", "rejected"])
def test_an_answer_that_is_left_out_takes_its_pair_with_it(bad: str, tmp_path: Path) -> None:
    refused = "{% for message in messages %}{% if message.content == 'bad' %}{{ raise_exception('no') }}"
    save_tokenizer(tmp_path / "tokenizer", template=f"{refused}{{% endif %}}{{% endfor %}}{TEMPLATE}")
    rows = [
        {"prompt": [QUESTION], "chosen": [answer(f"x{number}")], "rejected": [answer(f"y{number}")]}
        for number in range(3)
    ]
    whole = opened(rows, tmp_path, tokenizer="tokenizer")
    less = opened(
        [rows[0], {**rows[0], bad: [answer("bad")]}, *rows[1:]], tmp_path, tokenizer="tokenizer", skip_bad=1
    )
    (message,) = less.left_out
    assert message.startswith(f"p.jsonl:2 ({bad}) ")
    assert labels_of(less) == labels_of(whole) and prompts_of(less) == prompts_of(whole)


def test_every_epoch_has_each_pair_once_and_both_answers_together(tmp_path: Path) -> None:
    rows = [{"prompt": str(number), "chosen": "x", "rejected": "y"} for number in range(7)]
    order = opened(rows, tmp_path).order
    ids = order.sample_ids(0, count=28)
    pairs = ids.reshape(-1, 2)
    assert (pairs[:, 0] % 2 == 0).all()
    assert (pairs[:, 1] == pairs[:, 0] + 1).all()
    assert all({*half[:, 0]} == {*range(0, 14, 2)} for half in (pairs[:7], pairs[7:]))
    assert (pairs[:7] != pairs[7:]).any()
    apart = np.concatenate([order.sample_ids(start, count=3) for start in range(0, 27, 3)])
    assert (apart == ids[:27]).all()


def test_what_is_held_out_is_so_with_both_answers(tmp_path: Path) -> None:
    rows = [{"prompt": str(number), "chosen": "x", "rejected": "y"} for number in range(40)]
    sides = [opened(rows, tmp_path, held_out=HeldOut("1/2", is_kept=kept)) for kept in (True, False)]
    sizes = [side.dataset.num_sequences for side in sides]
    assert sum(sizes) == 80
    assert all(size % 2 == 0 and size > 0 for size in sizes)
    for side in sides:
        prompts = [*map(bytes, prompts_of(side))]
        assert prompts[::2] == prompts[1::2]
