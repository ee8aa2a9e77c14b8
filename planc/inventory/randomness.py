"""The fields of a config.json by which training draws random numbers. No torch here."""

from __future__ import annotations

from collections.abc import Mapping

_PARTS = ("drop", "jitter")
"""Parts of the names of probabilities in transformers: `resid_pdrop`, `layerdrop`, `router_jitter_noise`."""


def random_fields(config: Mapping[str, object]) -> tuple[str, ...]:
    """The fields that cause dropout, layer drop or jitter, in the order of the file."""
    return tuple(name for name, value in config.items() if _is_probability(value) and _is_random(name))


def _is_probability(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value != 0


def _is_random(name: str) -> bool:
    return any(part in name for part in _PARTS)
