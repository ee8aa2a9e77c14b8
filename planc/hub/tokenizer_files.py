"""The files of a tokenizer's directory, by name: those that `AutoTokenizer` may read.

Nothing else of a directory decides token ids, so copying, hashing and exporting these is enough.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

TOKENIZER = "tokenizer.json"
"""A whole tokenizer, as the tokenizers library saves it."""
SETTINGS = "tokenizer_config.json"
MODEL_CONFIG = "config.json"
"""The model's configuration, whose model type decides the class of a tokenizer that names none."""
TEMPLATE = "chat_template.jinja"
TEMPLATES = "additional_chat_templates"
"""A directory of more templates, each by the name of its file."""
DEFAULT_TEMPLATE, TOOLS_TEMPLATE = "default", "tool_use"
"""The names of the template for all conversations, and of that for conversations with tools if it exists."""
MASK_TOKENS = ("[MASK]", "<mask>")
"""The mask tokens of published masked language models."""

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


def template_files(names: Iterable[str]) -> dict[str, str]:
    """The template files among a tokenizer's files, by the names of their templates.

    If there are any, transformers reads no template in the settings.
    """
    listed = sorted(names)
    more = {PurePosixPath(one).name.removesuffix(".jinja"): one for one in listed if _is_more(one)}
    return {**({DEFAULT_TEMPLATE: TEMPLATE} if TEMPLATE in listed else {}), **more}


def _is_more(name: str) -> bool:
    return name.startswith(f"{TEMPLATES}/")


def template_settings(value: object) -> dict[str, str]:
    """The templates of a `chat_template` setting by name. Raises ValueError for another value."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {DEFAULT_TEMPLATE: value}
    pairs: list[tuple[object, object]] = []
    if isinstance(value, dict):
        pairs = [*value.items()]
    elif isinstance(value, list) and all(isinstance(one, dict) for one in value):
        pairs = [(one.get("name"), one.get("template")) for one in value]
    found = {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}
    if len(found) < len(pairs) or (not pairs and value != []):
        raise ValueError("`chat_template` is neither a text nor a list of templates, each with another name")
    return found


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
