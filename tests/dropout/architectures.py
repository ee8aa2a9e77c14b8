"""Tiny models of every architecture whose config has rates of dropout, all of them set."""

from __future__ import annotations

from typing import Any

from tests.models.architectures import architectures
from tests.models.tiny import tiny_config

RATE = 0.2
_OTHERS = ("layerdrop", "jitter")
"""What planc refuses everywhere."""
ATTENTION_ALONE = ("llama", "qwen3", "deepseek_v3", "gemma2", "mixtral")
"""Of the many models that only drop attention weights: grouped heads, norms on heads, latent heads, a cap."""


def dropping() -> dict[str, str]:
    """The class of every model type that drops more than attention weights, and of a few that do not."""
    return {
        model_type: name
        for model_type, name in architectures().items()
        if model_type in ATTENTION_ALONE or set(_rates(model_type)) - {"attention_dropout"}
    }


def dropping_config(model_type: str, architecture: str) -> dict[str, Any]:
    """A tiny config.json with every rate set."""
    return dict(tiny_config(model_type, architecture)) | dict.fromkeys(_rates(model_type), RATE)


def _rates(model_type: str) -> list[str]:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config: Any = CONFIG_MAPPING[model_type]
    return [
        name
        for name, value in config().to_dict().items()
        if "drop" in name
        and isinstance(value, int | float)
        and not isinstance(value, bool)
        and not any(other in name for other in _OTHERS)
    ]
