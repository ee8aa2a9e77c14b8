"""The differences of two config.json that make models compute differently."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

_FREE = frozenset(
    {"_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache", "initializer_range"}
)
"""The keys that no logits follow from."""


def differences(own: Mapping[str, object], other: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Each key that both have with different values, and these as text: `176, and the model's is 352`."""
    for key in sorted(own.keys() & other.keys() - _FREE):
        if not key.endswith("_token_id") and own[key] != other[key]:
            yield key, f"{other[key]}, and the model's is {own[key]}"
