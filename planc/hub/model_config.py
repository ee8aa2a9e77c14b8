"""A model's config.json as data, and the differences of two that make models compute differently."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from planc.hub.names import model_folder

_FREE = frozenset(
    {"_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache", "initializer_range"}
)
"""The keys that no logits follow from."""


def model_config(hf: str, *, base: Path) -> Mapping[str, object]:
    """The config.json of a model as a plan names it; empty if there is none here that is a JSON object."""
    try:
        config = json.loads((model_folder(hf, base=base) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def differences(own: Mapping[str, object], other: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Each key that both have with different values, and these as text: `176, and the model's is 352`."""
    for key in sorted(own.keys() & other.keys() - _FREE):
        if not key.endswith("_token_id") and own[key] != other[key]:
            yield key, f"{other[key]}, and the model's is {own[key]}"
