"""Code that a config.json may ask to run from outside transformers: a repository's modules or kernels."""

from __future__ import annotations

from collections.abc import Mapping


def code_asked_for(config: Mapping[str, object]) -> str | None:
    """The key of a config.json that asks for code of others, in its parts too; None where none does.

    `auto_map` names modules; an implementation of attention or experts may name a repository of kernels,
    which transformers would fetch and run (CVE-2026-4372). Its own have names without a slash.
    """
    for key, value in config.items():
        if key == "auto_map" or ("_implementation" in key and isinstance(value, str) and "/" in value):
            return key
        if isinstance(value, Mapping) and (found := code_asked_for(value)) is not None:
            return f"{key}.{found}"
    return None
