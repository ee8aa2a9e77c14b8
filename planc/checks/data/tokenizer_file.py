"""Facts about a tokenizer that the text of its files shows, without a library.

They agree with what a run loads as far as they go: a class of transformers may add tokens of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from planc.hub.tokenizer_files import (
    MASK_TOKENS,
    SETTINGS,
    TOKENIZER,
    holds_tokenizer,
    template_files,
    template_settings,
    tokenizer_files,
    tokenizer_folder,
)

_MAX_BYTES = 64 * 2**20
_INVALID = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


def num_token_ids(path: Path) -> int | None:
    """Return the largest id of a tokenizer, plus one; transformers may add more.

    None for files that are missing or that a run would reject too: a plan may be checked where only its text
    is, so a missing file is not a finding.
    """
    try:
        content = _tokenizer(path)
        if content is None:
            return None
        vocabulary, added = content["model"]["vocab"], content.get("added_tokens") or []
        ids = _ids(content)
        if not ids or not all(type(one) is int for one in ids.values()):
            return None
        # As the tokenizers library numbers new tokens.
        place = max([len(vocabulary), *(token["id"] + 1 for token in added)])
        num_new = len({*_tokens_of_settings(path)} - ids.keys())
        return max(*ids.values(), place + num_new - 1 if num_new else 0) + 1
    except _INVALID:
        return None


def token_ids(path: Path) -> Mapping[str, int] | None:
    """The ids of a tokenizer.json's tokens; None if the file is missing or invalid."""
    try:
        content = _tokenizer(path)
        return None if content is None else _ids(content)
    except _INVALID:
        return None


def _ids(content: Any) -> dict[str, int]:
    vocabulary, added = content["model"]["vocab"], content.get("added_tokens") or []
    # Unigram models list [piece, score], and ids are positions.
    pairs = vocabulary if isinstance(vocabulary, dict) else {row[0]: n for n, row in enumerate(vocabulary)}
    return {**pairs, **{token["content"]: token["id"] for token in added}}


def begin_of_documents(path: Path) -> tuple[str, ...] | None:
    """The tokens that a tokenizer puts before a text; None if only loading it shows them."""
    try:
        content = _tokenizer(path)
        return None if content is None else tuple(_begin(content.get("post_processor")))
    except _INVALID:
        return None


def end_of_documents(path: Path) -> str | None:
    """The token that a tokenizer's settings name as its end; None if only loading it shows one."""
    try:
        return dict(_named(_settings(path, SETTINGS))).get("eos_token")
    except _INVALID:
        return None


def has_mask_token(path: Path) -> bool | None:
    """Whether a tokenizer names a token that hides others; None if only loading it shows that."""
    try:
        content = _tokenizer(path)
        if "mask_token" in dict(_named(_settings(path, SETTINGS))):
            return True
        added = [token["content"] for token in (content or {}).get("added_tokens") or []]
        return None if content is None else any(token in MASK_TOKENS for token in added)
    except _INVALID:
        return None


def chat_templates(path: Path) -> frozenset[str] | None:
    """The names of a tokenizer's chat templates; None if its files are missing or damaged."""
    folder = tokenizer_folder(path)
    if folder is None:
        return frozenset() if path.is_file() else None
    if not holds_tokenizer(folder):
        return None
    try:
        in_files = template_files(tokenizer_files(folder))
        return frozenset(in_files or template_settings(_settings(path, SETTINGS).get("chat_template")))
    except _INVALID:
        return None


def _tokenizer(path: Path) -> Any:
    """The content of a tokenizer.json; None if there is none."""
    folder = tokenizer_folder(path)
    file = path if folder is None else folder / TOKENIZER
    if not file.is_file() or file.stat().st_size > _MAX_BYTES:
        return None
    return json.loads(file.read_bytes())


def _settings(path: Path, name: str) -> dict[str, Any]:
    """The content of a file next to a tokenizer.json; empty if there is none."""
    folder = tokenizer_folder(path)
    if folder is None or not (folder / name).is_file():
        return {}
    settings = json.loads((folder / name).read_bytes())
    if not isinstance(settings, dict):
        raise ValueError(f"{name} is not an object")
    return settings


def _tokens_of_settings(path: Path) -> Iterator[str]:
    """The tokens of the files next to a tokenizer.json, which transformers adds unless they are known."""
    settings = _settings(path, SETTINGS)
    decoder = settings.get("added_tokens_decoder")
    if decoder is None:
        settings = {**settings, **_settings(path, "special_tokens_map.json")}
        yield from _settings(path, "added_tokens.json")
    else:
        yield from (token["content"] for token in decoder.values())
    yield from (token for _, token in _named(settings))
    extra = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or []
    yield from (_text(token) for token in (extra.values() if isinstance(extra, dict) else extra))


def _named(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Special tokens by their role: `eos_token`, ..."""
    for role, token in settings.items():
        if role.endswith("_token") and isinstance(token, str | dict):
            yield role, _text(token)


def _text(token: Any) -> str:
    """A token that is written as text, or as an object with the text in it."""
    found = token["content"] if isinstance(token, dict) else token
    if not isinstance(found, str):
        raise ValueError(f"{found} is not a token")
    return found


def _begin(step: Any) -> Iterator[str]:
    """The tokens before a text in the last step of a tokenizer.json."""
    match step:
        case {"type": "TemplateProcessing", "single": [*parts]}:
            for part in parts:
                if "SpecialToken" not in part:
                    break
                yield part["SpecialToken"]["id"]
        case {"type": "BertProcessing" | "RobertaProcessing", "cls": [token, _]}:
            yield token
        case {"type": "Sequence", "processors": [*steps]}:
            for one in steps:
                yield from _begin(one)
