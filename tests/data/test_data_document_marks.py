"""What documents begin and end with: what the plan says, or what the tokenizer does itself."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import processors
from transformers import AutoTokenizer

from planc.data_sources.kinds import JsonLinesSource
from planc.runtime.data.errors import DataError
from planc.runtime.data.open import open_data, open_in_memory, open_prepared
from planc.runtime.data.prepared.prepare import prepare
from planc.runtime.data.prepared.wanted import want
from planc.runtime.data.spec import DataSpec
from tests.data.test_data_tokenizers import saved, trained
from tests.data.tokenizing import ids_of, load_tokenizer

TEXTS = ("def encode", "return piece\n", "")
SPEC = DataSpec(JsonLinesSource(("*.jsonl",)), "tokenizer.json", 4, 0, begin_of_document="auto")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A tokenizer that puts <s> before a text and </s> after it, as Llama's puts its own, and documents."""
    tokenizer = trained(("<s>", "</s>"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    saved(tokenizer, tmp_path)
    lines = (json.dumps({"text": text}) for text in TEXTS)
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def tokens(base: Path, begin: str | None) -> list[int]:
    opened = open_data(replace(SPEC, begin_of_document=begin), base=base, model_vocab_size=400)
    return [int(one) for one in opened.dataset.tokens[:]]


def test_auto_is_what_transformers_puts_around_each_text(base: Path) -> None:
    reference = AutoTokenizer.from_pretrained(base)
    assert tokens(base, "auto") == [one for text in TEXTS for one in reference(text)["input_ids"]]


def test_none_and_a_token_are_as_written(base: Path) -> None:
    reference = AutoTokenizer.from_pretrained(base)
    bare = [reference(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    assert tokens(base, None) == [one for ids in bare for one in [*ids, 1]]
    assert tokens(base, "</s>") == [one for ids in bare for one in [1, *ids, 1]]


def test_a_tokenizer_that_puts_nothing_there_begins_no_document(tmp_path: Path) -> None:
    folder = saved(trained(), tmp_path)
    for begin in ("auto", None):
        with contextlib.closing(
            load_tokenizer("tokenizer.json", base=folder, end_of_document=None, begin_of_document=begin)
        ) as tokenizer:
            assert ids_of(tokenizer, *TEXTS)[2] == []
            assert tokenizer.marks == "documents end with <|endoftext|> (0)"


def test_a_begin_that_is_not_a_token_is_refused(base: Path) -> None:
    with pytest.raises(DataError, match='has no token "<stop>"') as caught:
        tokens(base, "<stop>")
    assert "begin_of_document" in caught.value.help


def test_the_token_that_ends_a_text_ends_a_document_that_has_no_other(tmp_path: Path) -> None:
    tokenizer = trained(("[CLS]", "[SEP]"))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 1), ("[CLS]", 0))
    folder = saved(tokenizer, tmp_path)
    with contextlib.closing(
        load_tokenizer("tokenizer.json", base=folder, end_of_document=None, begin_of_document="auto")
    ) as loaded:
        assert loaded.end_of_document == 1
        assert loaded.marks == "documents begin with [CLS] (0) and end with [SEP] (1)"


def test_prepared_data_has_the_same_tokens_and_another_begin_is_prepared_anew(base: Path) -> None:
    wanted = {
        begin: want(replace(SPEC, begin_of_document=begin), base=base) for begin in ("auto", None, "<s>")
    }
    assert len({one.key for one in wanted.values()}) == 3
    in_memory = open_in_memory(wanted["auto"], model_vocab_size=400)
    prepared = prepare(base / "root", wanted["auto"], name="text")
    stored = open_prepared(prepared, wanted["auto"], model_vocab_size=400)
    assert stored.fingerprint == in_memory.fingerprint
    assert stored.marks == in_memory.marks == "documents begin with <s> (0) and end with </s> (1)"


def test_the_fingerprint_tells_apart_what_documents_begin_with(base: Path) -> None:
    def fingerprint(begin: str | None) -> str:
        spec = replace(SPEC, begin_of_document=begin)
        return open_data(spec, base=base, model_vocab_size=400).fingerprint

    assert fingerprint("auto") == fingerprint("<s>") != fingerprint(None)
