"""The content of a tokenizer's directory: its digest, the names of special tokens, and the chat templates."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from planc.hub.tokenizer_files import (
    MODEL_CONFIG,
    SETTINGS,
    TEMPLATE,
    TEMPLATES,
    TOKENIZER,
    template_files,
    template_settings,
    tokenizer_files,
    tokenizer_folder,
)
from planc.runtime.data.chat import ChatTemplate, Templates
from planc.runtime.data.errors import DataError
from planc.runtime.data.files import read_regular_file
from planc.runtime.ranks.reads import Reads

Files = Mapping[str, bytes]
"""The content of a tokenizer's files, by their paths in its directory."""

_DECIDING_KEYS = ("model_type", "model_name", "tokenizer_class", "auto_map", "transformers_version")
"""Keys of a model's configuration that transformers reads when it loads the tokenizer next to it."""


def read_tokenizer_files(path: Path, *, name: str, reads: Reads | None = None) -> Files:
    """The files of the tokenizer that a plan's path means; errors call the path `name`. Raises DataError."""
    folder = tokenizer_folder(path)
    if folder is None:
        return {TOKENIZER: read_regular_file(path, name=name, reads=reads)}
    if folder != path:
        name = str(PurePosixPath(name).parent)
    # A directory without a tokenizer is reported by the file that most have.
    names = tokenizer_files(folder)
    names = names if {*names} - {MODEL_CONFIG} else (TOKENIZER,)
    return {one: read_regular_file(folder / one, name=f"{name}/{one}", reads=reads) for one in names}


def is_alone(files: Files) -> bool:
    """Whether the files are one tokenizer.json: there is nothing that would change its ids."""
    return not any(_changes_ids(name) for name in files if name != TOKENIZER)


def digest_of(files: Files) -> str:
    """A SHA-256 of all that decides token ids; a tokenizer.json alone has that of its content."""
    if is_alone(files):
        return hashlib.sha256(files[TOKENIZER]).hexdigest()
    parts = {
        name: hashlib.sha256(_deciding(name, content)).hexdigest()
        for name, content in files.items()
        if _changes_ids(name)
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _changes_ids(name: str) -> bool:
    return name != TEMPLATE and not name.startswith(f"{TEMPLATES}/")


def _deciding(name: str, content: bytes) -> bytes:
    """Return the part of a file that decides ids: some files also hold other settings."""
    if name not in (MODEL_CONFIG, SETTINGS):
        return content
    try:
        settings = json.loads(content)
    except (ValueError, RecursionError):
        return content
    if not isinstance(settings, dict):
        return content
    if name == MODEL_CONFIG:
        settings = deciding_of(content)
    else:
        settings.pop("chat_template", None)
    return json.dumps(settings, sort_keys=True).encode()


def deciding_of(config: bytes) -> dict[str, Any]:
    """Return what decides a tokenizer's class in a model's config.json; empty for a damaged one."""
    try:
        settings = json.loads(config)
    except (ValueError, RecursionError):
        return {}
    settings = settings if isinstance(settings, dict) else {}
    return {key: settings[key] for key in _DECIDING_KEYS if key in settings}


def chat_templates_of(files: Files, *, name: str) -> Templates:
    """The chat templates of a tokenizer's files; errors call their directory `name`. Raises DataError."""
    setting, named = settings_of(files, name=name).get("chat_template"), template_files(files)
    if named:
        origins = {one: f"{name}/{file}" for one, file in named.items()}
        texts = {one: _decoded(files[file], name=origins[one]) for one, file in named.items()}
        return {one: ChatTemplate(origins[one], text) for one, text in texts.items()}
    origin = f"{name}/{SETTINGS}"
    try:
        texts = template_settings(setting)
    except ValueError as error:
        help = 'write [{"name": "default", "template": "..."}, ...], or one text'
        raise DataError(f"{origin}: {error}", help=help) from error
    return {
        one: ChatTemplate(origin if len(texts) == 1 else f"{one} in {origin}", text)
        for one, text in texts.items()
    }


def settings_of(files: Files, *, name: str) -> dict[str, Any]:
    """Parse tokenizer_config.json; empty without one. Raises DataError for a damaged one."""
    if SETTINGS not in files:
        return {}
    name = f"{name}/{SETTINGS}"
    try:
        config = json.loads(_decoded(files[SETTINGS], name=name))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name} is not JSON: {error}", help="restore the file") from error
    if not isinstance(config, dict):
        raise DataError(f"{name} is not a JSON object", help="restore the file")
    return config


def _decoded(content: bytes, *, name: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is not UTF-8: {error.reason}", help="restore the file") from error
