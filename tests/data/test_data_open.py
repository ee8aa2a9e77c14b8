"""Opening data as a plan describes it, and the fingerprint that guards a resume."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from planc.data_sources.kinds import JsonLinesSource, PythonStdlibSource, TextSource
from planc.runtime.data.errors import DataError
from planc.runtime.data.open import OpenData, open_data
from planc.runtime.data.spec import DataSpec

SPEC = DataSpec(source=TextSource(("*.txt",)), tokenizer="bytes", sequence_length=4, shuffle_seed=3)


def opened(spec: DataSpec, *, base: Path) -> OpenData:
    return open_data(spec, base=base, model_vocab_size=400)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "a.txt").write_text("some text to learn from")
    return folder


def save_word_tokenizer(path: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<eos>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["some text to learn from"] * 9, trainer)
    tokenizer.save(str(path))


def test_the_stdlib_opens_in_bytes() -> None:
    spec = DataSpec(PythonStdlibSource(), "bytes", sequence_length=512, shuffle_seed=0)
    dataset = open_data(spec, base=Path(), model_vocab_size=257).dataset
    assert dataset.num_sequences > 10_000
    assert dataset.num_tokens == dataset.num_text_bytes + dataset.num_documents


def test_a_tokenizer_file_lies_relative_to_the_base(base: Path) -> None:
    save_word_tokenizer(base / "tokenizer.json")
    data = opened(replace(SPEC, tokenizer="tokenizer.json"), base=base)
    assert data.dataset.tokens[-1] == data.end_of_document == 0
    assert data.dataset.num_tokens < data.dataset.num_text_bytes


def test_the_order_covers_the_dataset(base: Path) -> None:
    data = opened(SPEC, base=base)
    assert (data.order.num_sequences, data.order.seed) == (data.dataset.num_sequences, 3)


def test_a_model_with_too_few_token_ids_is_refused(base: Path) -> None:
    with pytest.raises(DataError, match="model has 256 token ids"):
        open_data(SPEC, base=base, model_vocab_size=256)


def test_a_negative_seed_is_refused(base: Path) -> None:
    with pytest.raises(DataError, match="shuffle_seed is -1"):
        opened(replace(SPEC, shuffle_seed=-1), base=base)


def test_equal_data_in_another_folder_has_the_same_fingerprint(base: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    moved.mkdir()
    (moved / "a.txt").write_text("some text to learn from")
    assert opened(SPEC, base=moved).fingerprint == opened(SPEC, base=base).fingerprint


@pytest.mark.parametrize(
    "changed",
    [
        replace(SPEC, source=TextSource(("a.txt",))),
        replace(SPEC, source=JsonLinesSource(("*.txt",), field="body")),
        replace(SPEC, tokenizer="tokenizer.json"),
        replace(SPEC, sequence_length=5),
        replace(SPEC, shuffle_seed=4),
    ],
    ids=["patterns", "kind", "tokenizer", "length", "seed"],
)
def test_every_setting_is_in_the_fingerprint(base: Path, changed: DataSpec) -> None:
    save_word_tokenizer(base / "tokenizer.json")
    (base / "a.txt").write_text('{"body": "some text to learn from"}')
    assert opened(changed, base=base).fingerprint != opened(SPEC, base=base).fingerprint


def test_one_changed_letter_changes_the_fingerprint(base: Path) -> None:
    before = opened(SPEC, base=base).fingerprint
    (base / "a.txt").write_text("some text to learn frog")
    assert opened(SPEC, base=base).fingerprint != before


def test_the_same_text_cut_into_other_documents_changes_the_fingerprint(base: Path) -> None:
    before = opened(SPEC, base=base).fingerprint
    (base / "a.txt").write_text("some text to ")
    (base / "b.txt").write_text("learn from")
    assert opened(SPEC, base=base).fingerprint != before


def test_an_uncaught_error_shows_its_help(base: Path) -> None:
    with pytest.raises(DataError) as caught:
        opened(replace(SPEC, source=TextSource(("*.md",))), base=base)
    (note,) = caught.value.__notes__
    assert note.startswith(f"help: patterns are relative to {base}; {base} has ")
