"""Text that leaves planc: no secret, nothing that steers a terminal or a CI runner, and short messages.

Names and values in messages come from data, manifests, tokenizers and models, which anybody may have written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import TextIO

SECRET_VARIABLES = ("WANDB_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_MIN_CHARACTERS = 6
"""No key is shorter, and a letter or two would be found in every other word."""
MAX_MESSAGE = 4_000
_LONG = 500
_LONG_NAME = re.compile(rf"\S{{{_LONG},}}")
"""A path or a value: the words after it state what is wrong."""
_UNSAFE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029]|\r(?!\n)")
"""Control characters but for line ends and tabs, and what reverses the direction of writing."""
_COLORS = re.compile(r"(\033\[[0-9;]*m)")
_REDRAWING = re.compile(r"(\033\[(?:[0-9;]*m|[0-9]*[AK]|\?25[lh])|\r)")
"""Sequences that planc itself, and rich, write to a terminal."""
_COMMAND = re.compile(r"(?m)^([^\S\n]*)::(?!:)")
_OLD_COMMAND = re.compile(r"##(?=\[|vso\[|teamcity\[)")
"""Commands of a step to GitHub, Azure Pipelines and TeamCity."""


def message_text(text: str) -> str:
    """A bounded message with its control characters escaped."""
    return _UNSAFE.sub(_escaped, bounded_text(text))


def bounded_text(text: str) -> str:
    """A message with long names abridged, cut to MAX_MESSAGE characters."""
    if len(text) < _LONG:
        return text
    text = _LONG_NAME.sub(_abridged, text)
    return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}... ({len(text):_} characters)"


def _abridged(match: re.Match[str]) -> str:
    return f"{match[0][:300]}...({len(match[0]):_} characters)...{match[0][-60:]}"


def guard(stream: TextIO | None, *, environment: Mapping[str, str]) -> None:
    """Make a stream write text that is harmless, with `***` for every secret of the environment."""
    if stream is None or hasattr(stream.write, "commands"):
        return
    write = stream.write
    is_terminal, starts_line = stream.isatty(), True

    def write_commands(text: str) -> int:
        write(redactor(environment)(text))
        return len(text)

    def write_harmless(text: str) -> int:
        nonlocal starts_line
        kept = _REDRAWING if is_terminal else _COLORS if _forces_color() else None
        write_commands(harmless(text, kept=kept, starts_line=starts_line))
        starts_line = text.endswith("\n") if text else starts_line
        return len(text)

    write_harmless.commands = write_commands  # type: ignore[attr-defined]
    stream.write = write_harmless  # type: ignore[method-assign]


def write_commands(text: str, *, stream: TextIO) -> None:
    """Write the commands of a CI runner, whose texts are escaped already."""
    write: Callable[[str], int] = getattr(stream.write, "commands", stream.write)
    write(text)


def write_text(text: str, *, stream: TextIO) -> None:
    """Write any other text."""
    stream.write(text)


def harmless(text: str, *, kept: re.Pattern[str] | None = None, starts_line: bool = True) -> str:
    """The text without control characters, but for `kept` sequences, and without a CI runner's commands."""
    if "::" in text:
        text = _COMMAND.sub(lambda match: _broken(match, starts_line=starts_line), text)
    text = _OLD_COMMAND.sub("# #", text)
    if not _UNSAFE.search(text):
        return text
    if kept is None:
        return _UNSAFE.sub(_escaped, text)
    parts = kept.split(text)
    return "".join(part if number % 2 else _UNSAFE.sub(_escaped, part) for number, part in enumerate(parts))


def _broken(match: re.Match[str], *, starts_line: bool) -> str:
    if match.start() == 0 and not starts_line:
        return match[0]
    return f"{match[1]}\\::"


def _escaped(match: re.Match[str]) -> str:
    # As JSON has it too, so JSON stays JSON.
    return f"\\u{ord(match[0]):04x}"


def _forces_color() -> bool:
    names = ("FORCE_COLOR", "CLICOLOR_FORCE")
    return any(os.environ.get(name, "0") not in ("", "0") for name in names)


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
