"""The files next to a `tokenizer.json`: the names of special tokens, and the chat template."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planc.runtime.data.chat import ChatTemplate
from planc.runtime.data.errors import DataError
from planc.runtime.data.files import read_regular_file
from planc.runtime.ranks.reads import Reads

CONFIG, TEMPLATE = "tokenizer_config.json", "chat_template.jinja"


@dataclass(frozen=True, slots=True)
class TokenizerConfig:
    """`special_tokens` by their role: `eos_token`, `bos_token`, ..."""

    special_tokens: Mapping[str, str]
    chat_template: ChatTemplate | None


def read_tokenizer_config(folder: Path, *, name: str, reads: Reads | None = None) -> TokenizerConfig:
    """A directory's tokenizer settings; errors call it `name`. Raises DataError for damaged files."""
    config = _config(folder, name=name, reads=reads)
    special_tokens = dict(_special_tokens(config))
    origin, text = f"{name}/{CONFIG}", config.get("chat_template")
    if (folder / TEMPLATE).exists():
        # As in transformers, the file takes precedence over the setting.
        origin = f"{name}/{TEMPLATE}"
        text = _decoded(folder / TEMPLATE, name=origin, reads=reads)
    if isinstance(text, list):
        named = {one.get("name"): one.get("template") for one in text if isinstance(one, dict)}
        text = named.get("default")
    template = ChatTemplate(origin, text, special_tokens) if isinstance(text, str) else None
    return TokenizerConfig(special_tokens, template)


def _config(folder: Path, *, name: str, reads: Reads | None) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.exists():
        return {}
    try:
        config = json.loads(_decoded(path, name=f"{name}/{CONFIG}", reads=reads))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name}/{CONFIG} is not JSON: {error}", help="restore the file") from error
    if not isinstance(config, dict):
        raise DataError(f"{name}/{CONFIG} is not a JSON object", help="restore the file")
    return config


def _special_tokens(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for role, token in config.items():
        # Written as text, or as an object with the text in it.
        content = token.get("content") if isinstance(token, dict) else token
        if role.endswith("_token") and isinstance(content, str):
            yield role, content


def _decoded(path: Path, *, name: str, reads: Reads | None) -> str:
    try:
        return read_regular_file(path, name=name, reads=reads).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is not UTF-8: {error.reason}", help="restore the file") from error


def folder_of_tokenizer(tokenizer: str, *, base: Path) -> Path | None:
    """The directory of a plan's tokenizer, a path relative to `base`; None for `bytes`."""
    if tokenizer == "bytes":
        return None
    return tokenizer_file(base / tokenizer).parent


def tokenizer_file(path: Path) -> Path:
    """The tokenizer.json that a plan's path means: the file itself, or the one in a directory."""
    return path / "tokenizer.json" if path.is_dir() else path
