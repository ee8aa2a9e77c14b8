"""Exported tokenizers: `AutoTokenizer` gives the ids that were trained on, next to any config.json."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from planc.runtime.data.errors import DataError
from planc.runtime.data.exported_tokenizer import exported_tokenizer
from planc.runtime.data.tokenizers import read_tokenizer
from tests.data.against_transformers import chat_tokenizers
from tests.data.tokenizing import ids_of

TEXTS = (
    *("def <think>x</think>", " <|im_start|>\n hello  world </s>", " a", "The cat's 123"),
    *("na\u00efve caf\u00e9 \u2615", "cafe\u0301 1234"),
)
SETTINGS: dict[str, dict[str, Any] | None] = {
    "alone": None,
    "no class": {"eos_token": "</s>"},
    "plain": {"eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"},
    "own": {"eos_token": "</s>", "tokenizer_class": "GPT2Tokenizer"},
}
REFUSED = {
    # transformers has one class for all of the type.
    *((kind, settings, "qwen2") for kind in ("byte-level", "Llama 2") for settings in SETTINGS),
    ("Llama 2", "own", "mistral"),
}


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("model_type", ["gemma", "qwen2", "mistral"])
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", ["byte-level", "Llama 2"])
def test_an_export_has_the_ids_that_were_trained_on_or_is_refused(
    tmp_path: Path, kind: str, settings: str, model_type: str
) -> None:
    folder = chat_tokenizers.save(kind, tmp_path / "tokenizer")
    (folder / "tokenizer_config.json").unlink()
    if SETTINGS[settings] is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(SETTINGS[settings]))
    tokenizer = read_tokenizer("tokenizer", base=tmp_path, end_of_document="</s>")
    config = json.dumps({"model_type": model_type}).encode()
    is_refused = (kind, settings, model_type) in REFUSED
    with contextlib.closing(tokenizer.load(num_processes=1)) as loaded:
        expected = ids_of(loaded, *TEXTS)
    files = tokenizer.files
    if is_refused:
        with pytest.raises(DataError, match="would load the tokenizer tokenizer from an export with other"):
            exported_tokenizer(tokenizer, config=config)
    else:
        files = exported_tokenizer(tokenizer, config=config)
    (tmp_path / "export").mkdir()
    for name, content in {**files, "config.json": config}.items():
        (tmp_path / "export" / name).write_bytes(content)
    exported = AutoTokenizer.from_pretrained(tmp_path / "export", local_files_only=True)
    found = [exported(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    assert (found != expected) == is_refused


def test_the_models_own_tokenizer_is_exported_as_it_is(tmp_path: Path) -> None:
    folder = chat_tokenizers.save("Llama 2", tmp_path / "model")
    config = json.dumps({"model_type": "qwen2", "hidden_size": 8}).encode()
    (folder / "config.json").write_bytes(config)
    tokenizer = read_tokenizer("model", base=tmp_path, end_of_document=None)
    changed = json.dumps({"model_type": "qwen2", "hidden_size": 16}).encode()
    assert exported_tokenizer(tokenizer, config=changed) == tokenizer.files
