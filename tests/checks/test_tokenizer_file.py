"""Token ids of a tokenizer.json, counted without the tokenizers library."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from planc.api import check_source
from planc.checks.data.tokenizer_file import num_token_ids
from planc.source import SourceFile
from tests.plans import FULL, PLANS


def saved(folder: Path, *, num_words: int, added: tuple[str, ...] = ()) -> Path:
    """A real tokenizer of that many words."""
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(num_words)}, unk_token="w0"))
    tokenizer.add_special_tokens(list(added))
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def test_words_and_added_tokens_are_counted(tmp_path: Path) -> None:
    assert num_token_ids(saved(tmp_path, num_words=300, added=("</s>", "<pad>"))) == 302


def test_pieces_of_a_unigram_model_are_counted(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.Unigram([("a", -1.0), ("b", -2.0), ("c", -3.0)], 0, False))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert num_token_ids(tmp_path / "tokenizer.json") == 3


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"model": 1}', '{"model": {"vocab": {"a": "b"}}}', "[" * 10_000]
)
def test_what_is_no_tokenizer_has_no_count(content: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    assert num_token_ids(tmp_path / "tokenizer.json") is None


def test_a_file_that_is_not_here_has_no_count(tmp_path: Path) -> None:
    assert num_token_ids(tmp_path / "tokenizer.json") is None


@pytest.mark.parametrize(("num_words", "codes"), [(260, []), (261, ["P705"])])
def test_ids_beyond_the_models_rows_are_found(num_words: int, codes: list[str], tmp_path: Path) -> None:
    (tmp_path / "models").symlink_to(PLANS / "models")
    saved(tmp_path, num_words=num_words)
    config = json.loads((PLANS / "models" / "tiny-llama" / "config.json").read_text(encoding="utf-8"))
    assert config["vocab_size"] == 260
    assert "tokenizer = bytes" in FULL
    text = FULL.replace("tokenizer = bytes", 'tokenizer = file("tokenizer.json")')
    checked = check_source(SourceFile("example.plan", text), base=tmp_path)
    assert [one.code.code for one in checked.diagnostics] == codes
