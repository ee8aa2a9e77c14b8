"""A tokenizer's files in an exported directory, where transformers also reads the model's config.json."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace

from planc.hub.tokenizer_files import MODEL_CONFIG, SETTINGS, TOKENIZER
from planc.runtime.data.encoding.client import Tokens
from planc.runtime.data.errors import DataError
from planc.runtime.data.sources import Document
from planc.runtime.data.tokenizer_folder import Files, deciding_of, settings_of
from planc.runtime.data.tokenizers import Tokenizer, TokenizerFiles

_PLAIN = "PreTrainedTokenizerFast"
"""The class that takes a tokenizer.json as it is."""
_PROBES = (
    *(
        "def f(x):\n    return  x\n",
        " The cat's 1234 hats",
        "Naïve café \u2615 你好 مرحبا",
        "\n\n \t<b>x</b>",
    ),
    *("a", "A B", "x\u200by \u00a0z", "it's   spaced ", "USER: hi ASSISTANT: hello"),
    # What normalizers compose, decompose, or fold.
    *(
        "cafe\u0301 A\u030a \u1112\u1161\u11ab",
        "\u212b \ufb01 \u00bd \u2460 \uff21",
        "\u0130 STRASSE Stra\u00dfe",
    ),
    *("12345678 3.14 1,000", "x</s> <|endoftext|><s>y"),
)
_MAX_TOKENS = 2_000
"""Tokens that are decoded to compare them, from the smallest id on."""


def exported_tokenizer(tokenizer: TokenizerFiles, *, config: bytes) -> Files:
    """The files of a tokenizer as an export next to a model's `config` has them.

    transformers chooses the class of a tokenizer that names none by the model's type, so a tokenizer.json
    from another directory gets a class that takes it as it is. DataError if its ids would still be others.
    """
    files = tokenizer.files
    if deciding_of(files.get(MODEL_CONFIG, b"{}")) == deciding_of(config):
        return files
    made = {**_with_class(files), MODEL_CONFIG: config}
    if _behavior(tokenizer) != _behavior(replace(tokenizer, files=made)):
        raise DataError(
            f"transformers would load the tokenizer {tokenizer.name} from an export with other token ids: it "
            f"chooses its class by the model's config.json ({deciding_of(config).get('model_type')})",
            help="use the model's own tokenizer, or remove `export` from `checkpoint`",
        )
    return made


def _with_class(files: Files) -> Files:
    if TOKENIZER not in files or deciding_of(files.get(MODEL_CONFIG, b"{}")).get("model_type"):
        return files
    settings = settings_of(files, name="the tokenizer")
    if "tokenizer_class" in settings or "auto_map" in settings:
        return files
    settings["tokenizer_class"] = _PLAIN
    return {**files, SETTINGS: (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode()}


def _behavior(files: TokenizerFiles) -> object:
    """Return a tokenizer's ids of some texts, and its special tokens; the error if it can't be loaded."""
    try:
        with contextlib.closing(replace(files, chat_templates={}).load(num_processes=1)) as loaded:
            return _of_texts(loaded)
    except DataError as error:
        return error.message


def _of_texts(loaded: Tokenizer) -> object:
    ids = [[one] for one in range(min(loaded.vocab_size, _MAX_TOKENS))]
    texts = [*_PROBES, *loaded.decode(ids)]
    documents = [Document("", text, len(text.encode())) for text in texts]
    made = [one.ids.tolist() if isinstance(one, Tokens) else None for one in loaded.encode(documents)]
    return texts, made, loaded.vocab_size, loaded.end_of_document, loaded.marks
