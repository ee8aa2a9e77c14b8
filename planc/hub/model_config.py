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


PREPROCESSOR = "preprocessor_config.json"
PATCH_SIZES = ("patch_size", "merge_size", "temporal_patch_size")
"""Its sizes that an encoder has too: of a patch, of a token in patches, and of the frames in a patch."""


def model_config(hf: str, *, base: Path) -> Mapping[str, object]:
    """The config.json of a model as a plan names it; empty if there is none here that is a JSON object."""
    return _object_in(model_folder(hf, base=base) / "config.json")


def pixel_settings(hf: str, *, base: Path) -> Mapping[str, object]:
    """The settings of a model by which images are read; empty as `model_config` is."""
    return _object_in(model_folder(hf, base=base) / PREPROCESSOR)


def _object_in(path: Path) -> Mapping[str, object]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def differences(own: Mapping[str, object], other: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Each key that both have with different values, and these as text: `176, and the model's is 352`."""
    for key in sorted(own.keys() & other.keys() - _FREE):
        if not key.endswith("_token_id") and own[key] != other[key]:
            yield key, f"{other[key]}, and the model's is {own[key]}"
