"""The files of a tokenizer's directory, by name: those that `AutoTokenizer` may read.

Nothing else of a directory decides token ids, so copying, hashing and exporting these is enough.
"""

from __future__ import annotations

import fnmatch
from pathlib import Path

TOKENIZER = "tokenizer.json"
"""A whole tokenizer, as the tokenizers library saves it."""
SETTINGS = "tokenizer_config.json"
MODEL_CONFIG = "config.json"
"""The model's configuration, whose model type decides the class of a tokenizer that names none."""
TEMPLATE = "chat_template.jinja"
TEMPLATES = "additional_chat_templates"
"""A directory of more templates."""

_VOCABULARIES = (
    *("tokenizer.*.json", "tokenizer.model*", "tekken.json", "tiktoken.model"),
    *("vocab.json", "vocab.txt", "merges.txt", "bpe.codes", "dict.txt", "prophetnet.tokenizer"),
    *("spiece.model", "sentencepiece.model", "sentencepiece.bpe.model", "spm.model", "spm_char.model"),
    *("source.spm", "target.spm", "target_vocab.json", "vocab-src.json", "vocab-tgt.json"),
    *("byte_maps.json", "emoji.json", "entity_vocab.json", "normalizer.json"),
    *("word_pronunciation.json", "word_shape.json"),
)
PATTERNS = (
    *(TOKENIZER, SETTINGS, MODEL_CONFIG, "special_tokens_map.json", "added_tokens.json"),
    *(TEMPLATE, f"{TEMPLATES}/*.jinja", *_VOCABULARIES),
)
"""Globs of all of them."""


def is_tokenizer_file(name: str) -> bool:
    """Whether a file of a directory, by its path in it, is one of a tokenizer's."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in PATTERNS)


def tokenizer_files(folder: Path) -> tuple[str, ...]:
    """The files of a tokenizer's directory, by their paths in it, sorted."""
    found = [*folder.iterdir(), *(folder / TEMPLATES).glob("*.jinja")] if folder.is_dir() else []
    names = (path.relative_to(folder).as_posix() for path in found if path.is_file())
    return tuple(sorted(filter(is_tokenizer_file, names)))


def holds_tokenizer(folder: Path) -> bool:
    """Whether a directory has any file of a tokenizer; a model's configuration alone is none."""
    return any(name != MODEL_CONFIG for name in tokenizer_files(folder))


def tokenizer_folder(path: Path) -> Path | None:
    """The directory that a plan's path means: itself, or that of a tokenizer.json; None for another file.

    What lies next to a tokenizer.json belongs to it: transformers reads it, and an export holds it.
    """
    if path.is_dir():
        return path
    return path.parent if path.name == TOKENIZER else None
