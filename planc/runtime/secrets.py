"""Takes secrets out of what is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping

SECRET_VARIABLES = ("WANDB_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def redactor(environment: Mapping[str, str]) -> Callable[[str], str]:
    """A function that puts `***` for every secret of the environment in a text."""
    secrets = [environment[name] for name in SECRET_VARIABLES if environment.get(name)]

    def redact(text: str) -> str:
        for secret in secrets:
            text = text.replace(secret, "***")
        return text

    return redact
