"""Takes secrets out of what is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping

SECRET_VARIABLES = ("WANDB_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_MIN_CHARACTERS = 6
"""No key is shorter, and a letter or two would be found in every other word."""


def redactor(environment: Mapping[str, str]) -> Callable[[str], str]:
    """A function that puts `***` for every secret of the environment in a text."""
    secrets = _secrets(environment)

    def redact(text: str) -> str:
        for secret in secrets:
            text = text.replace(secret, "***")
        return text

    return redact


def _secrets(environment: Mapping[str, str]) -> list[str]:
    found = (environment.get(name, "") for name in SECRET_VARIABLES)
    return [secret for secret in found if len(secret) >= _MIN_CHARACTERS]
