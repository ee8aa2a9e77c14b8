"""Facts about a tokenizer.json and the files next to it that its text alone shows."""

from __future__ import annotations

import json
from pathlib import Path

from planc.tokenizer_files import SETTINGS, TEMPLATE, holds_tokenizer, tokenizer_folder

_MAX_BYTES = 64 * 2**20


def num_token_ids(path: Path) -> int | None:
    """Return the largest id of a file, or of the file in a directory, plus one.

    None for a file that is missing or that a run would reject too: a plan may be checked where only its text
    is, so a missing file is not a finding.
    """
    try:
        if path.is_dir():
            path = path / "tokenizer.json"
        if not path.is_file() or path.stat().st_size > _MAX_BYTES:
            return None
        content = json.loads(path.read_bytes())
        vocabulary, added = content["model"]["vocab"], content.get("added_tokens") or []
        # Unigram models list [piece, score], and ids are positions.
        ids = [*vocabulary.values()] if isinstance(vocabulary, dict) else [len(vocabulary) - 1]
        ids.extend(token["id"] for token in added)
        return max(ids) + 1 if ids and all(type(one) is int for one in ids) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def has_chat_template(path: Path) -> bool | None:
    """Whether a tokenizer has a chat template; None if its files are missing or damaged."""
    folder = tokenizer_folder(path)
    if folder is None:
        return False if path.is_file() else None
    if not holds_tokenizer(folder):
        return None
    if (folder / TEMPLATE).is_file():
        return True
    try:
        config = json.loads((folder / SETTINGS).read_bytes())
    except FileNotFoundError:
        return False
    except (OSError, ValueError, RecursionError):
        return None
    return isinstance(config, dict) and bool(config.get("chat_template"))
