"""How many token ids a tokenizer.json has, as far as its text says."""

from __future__ import annotations

import json
from pathlib import Path

_MAX_BYTES = 64 * 2**20


def num_token_ids(path: Path) -> int | None:
    """One more than the largest id; None for a file that is not here, or that the run will not take either.

    A plan may be checked where only its text is, so that a missing file is no finding.
    """
    try:
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
