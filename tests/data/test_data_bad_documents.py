"""`skip_bad` leaves out as many bad documents, and each is named. One more is an error."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from planc.data_sources import Source
from planc.data_sources.kinds import ChatSource, JsonLinesSource, TextSource
from planc.runtime.data import json_rows
from planc.runtime.data.errors import DataError
from planc.runtime.data.open import open_data, open_prepared
from planc.runtime.data.prepared.folder import find, folders
from planc.runtime.data.prepared.leftovers import unfinished
from planc.runtime.data.prepared.prepare import prepare
from planc.runtime.data.prepared.wanted import want
from planc.runtime.data.spec import DataSpec
from tests.data.conversing import TALK, save_tokenizer
from tests.data.test_data_encoding import PANIC, saved

TEMPLATE = (
    "{% for one in messages %}{% if not one.content %}{{ raise_exception('no content') }}{% endif %}"
    "{% generation %}{{ one.content }}{% endgeneration %}{% endfor %}"
)
GOOD = ["one", "two and more", "three"]
BAD_LINES = {
    "not UTF-8": b'{"text": "\xff"}',
    "not JSON": b"{",
    "not a JSON object": b"[1]",
    'no field "text"': b'{"other": 1}',
    "not a string": b'{"text": 1}',
    "a lone surrogate": b'{"text": "\\ud800"}',
    "is longer than": b'{"text": "' + b"y" * 4_000 + b'"}',
    "cannot be tokenized: the tokenizers library fails": b'{"text": "' + PANIC + b'"}',
}
BAD_TALKS = {
    "is not a list of messages": [],
    "contains U": [{"role": "user", "content": "\ufdd0"}],
    "rejected by the chat template: no content": [{"role": "user", "content": ""}],
}


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every kind of bad document between good ones, and the good ones alone."""
    monkeypatch.setattr(json_rows, "MAX_LINE_BYTES", 1_000)
    saved(tmp_path)
    save_tokenizer(tmp_path / "tokenizer", template=TEMPLATE)
    lines = [json.dumps({"text": text}).encode() for text in GOOD]
    for name, bad in (("bad", list(BAD_LINES.values())), ("good", [])):
        (tmp_path / f"{name}.jsonl").write_bytes(b"\n".join([lines[0], *bad, *lines[1:]]) + b"\n")
    talks = [json.dumps({"messages": talk}) for talk in [TALK, *BAD_TALKS.values(), TALK]]
    (tmp_path / "bad.talks").write_text("\n".join(talks), encoding="utf-8")
    (tmp_path / "good.talks").write_text("\n".join([talks[0], talks[-1]]), encoding="utf-8")
    for number, content in enumerate([b"some text\n" * 9, b"\xff", b"more text\n" * 9]):
        (tmp_path / f"bad-{number}.txt").write_bytes(content)
        if number != 1:
            (tmp_path / f"good-{number}.txt").write_bytes(content)
    return tmp_path


def spec(name: str, kind: str, *, skip_bad: int = 0) -> DataSpec:
    source: Source = {
        "jsonl": JsonLinesSource((f"{name}.jsonl",)),
        "chat": ChatSource((f"{name}.talks",)),
        "text": TextSource((f"{name}-*.txt",)),
    }[kind]
    tokenizer = "tokenizer" if kind == "chat" else "tokenizer.json"
    return DataSpec(source, tokenizer, 4, 0, skip_bad=skip_bad)


PLACES = {"jsonl": "bad.jsonl", "chat": "bad.talks", "text": "bad-1.txt"}
KINDS = {"jsonl": list(BAD_LINES), "chat": list(BAD_TALKS), "text": ["bad-1.txt is not UTF-8"]}


@pytest.mark.parametrize("kind", KINDS)
def test_bad_documents_are_left_out_and_each_is_named(kind: str, base: Path) -> None:
    wanted = want(spec("bad", kind, skip_bad=len(KINDS[kind])), base=base)
    prepared = prepare(base / "root", wanted, name="test")
    expected = open_data(spec("good", kind), base=base, model_vocab_size=400)
    for data in (
        open_prepared(prepared, wanted, model_vocab_size=400),
        open_data(wanted.spec, base=base, model_vocab_size=400),
    ):
        assert len(data.left_out) == len(KINDS[kind]) and not expected.left_out
        for number, (message, reason) in enumerate(zip(data.left_out, KINDS[kind], strict=True), start=2):
            assert reason in message
            assert (PLACES[kind] if kind == "text" else f"{PLACES[kind]}:{number} ") in message
        assert data.dataset.num_documents == expected.dataset.num_documents
        for index in range(expected.dataset.num_sequences):
            np.testing.assert_array_equal(data.dataset[index], expected.dataset[index])


@pytest.mark.parametrize("kind", KINDS)
def test_one_more_than_the_limit_is_an_error_that_names_it(kind: str, base: Path) -> None:
    limit = len(KINDS[kind]) - 1
    wanted = want(spec("bad", kind, skip_bad=limit), base=base)
    with pytest.raises(DataError) as caught:
        prepare(base / "root", wanted, name="test")
    assert KINDS[kind][-1] in caught.value.message
    assert f"write `skip_bad = {limit + 1}` in `data`" in caught.value.help
    assert not folders(base / "root") and not unfinished(base / "root")


def test_data_that_was_prepared_without_documents_is_not_for_a_plan_that_wants_all(base: Path) -> None:
    wanted = want(spec("bad", "text", skip_bad=3), base=base)
    prepared = prepare(base / "root", wanted, name="test")
    assert find(base / "root", want(spec("bad", "text", skip_bad=1), base=base)) == prepared
    with pytest.raises(
        DataError, match=r"without 1 bad document, and `skip_bad` is 0; .*bad-1\.txt"
    ) as caught:
        find(base / "root", want(spec("bad", "text"), base=base))
    assert "`skip_bad = 1`" in caught.value.help


def test_the_limit_does_not_change_what_whole_data_is(base: Path) -> None:
    one, other = (want(spec("good", "jsonl", skip_bad=number), base=base) for number in (0, 5))
    assert one.key == other.key
    assert prepare(base / "root", one, name="test") == prepare(base / "root", other, name="test")
    prints = [
        open_data(replace(one.spec, skip_bad=number), base=base, model_vocab_size=400).fingerprint
        for number in (0, 5)
    ]
    assert prints[0] == prints[1]
