"""Token ids of a tokenizer.json, counted without the tokenizers library."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, processors
from transformers import AutoTokenizer

from planc.api import check_source
from planc.checks.data.tokenizer_file import begin_of_documents, num_token_ids
from planc.source import SourceFile
from tests.plans import FULL, PLANS

END = {"__type": "AddedToken", "content": "</s>"}
ENDS = [("<s>", 300), ("</s>", 301)]


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


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"tokenizer_config.json": {"added_tokens_decoder": {"900": {"content": "<think>"}}}}, 302),
        (
            {
                "tokenizer_config.json": {
                    "pad_token": "<pad>",
                    "eos_token": {"__type": "AddedToken", "content": "</s>"},
                }
            },
            302,
        ),
        ({"tokenizer_config.json": {"extra_special_tokens": ["<a>", "<b>", "</s>"]}}, 303),
        ({"tokenizer_config.json": {"extra_special_tokens": {"image_token": "<a>"}}}, 302),
        ({"tokenizer_config.json": {"additional_special_tokens": ["<a>"]}}, 302),
        ({"added_tokens.json": {"<a>": 700}, "special_tokens_map.json": {"pad_token": "<p>"}}, 303),
        ({"tokenizer_config.json": {"add_bos_token": True, "model_max_length": 4}}, 301),
    ],
)
def test_tokens_of_the_files_next_to_it_are_counted_as_transformers_adds_them(
    files: dict[str, dict[str, object]], expected: int, tmp_path: Path
) -> None:
    saved(tmp_path, num_words=300, added=("</s>",))
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    reference = AutoTokenizer.from_pretrained(tmp_path)
    assert num_token_ids(tmp_path) == max(reference.get_vocab().values()) + 1 == expected
    # A copy of another name is alone.
    (tmp_path / "alone.json").write_bytes((tmp_path / "tokenizer.json").read_bytes())
    assert num_token_ids(tmp_path / "alone.json") == 301


@pytest.mark.parametrize(
    ("processor", "expected"),
    [
        (None, ()),
        (processors.ByteLevel(), ()),
        (processors.BertProcessing(("</s>", 301), ("<s>", 300)), ("<s>",)),
        (processors.RobertaProcessing(("</s>", 301), ("<s>", 300)), ("<s>",)),
        (
            processors.Sequence(
                [
                    processors.ByteLevel(),
                    processors.TemplateProcessing(single="<s> </s> $A <s>", special_tokens=ENDS),
                ]
            ),
            ("<s>", "</s>"),
        ),
        (processors.TemplateProcessing(single="$A </s>", special_tokens=ENDS), ()),
    ],
)
def test_what_it_puts_before_a_text_is_read(
    processor: processors.PostProcessor | None, expected: tuple[str, ...], tmp_path: Path
) -> None:
    path = saved(tmp_path, num_words=300, added=("<s>", "</s>"))
    tokenizer = Tokenizer.from_file(str(path))
    if processor is not None:
        tokenizer.post_processor = processor
    tokenizer.save(str(path))
    assert begin_of_documents(path) == expected
    ids = tokenizer.encode("w1").ids
    assert tuple(tokenizer.id_to_token(one) for one in ids[: ids.index(1)]) == expected
