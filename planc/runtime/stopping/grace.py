"""How long a run needs to end well, and how long those wait who tell it to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

TORCHRUN_GRACE_SECONDS = 30
"""How long torchrun waits after it has passed a signal on, unless it is told otherwise."""
_VARIABLES = ("PET_SHUTDOWN_TIMEOUT", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT")
"""What torchrun reads, in this order, where its command does not say."""
_OPTIONS = ("--shutdown-timeout", "--shutdown_timeout")


@dataclass(slots=True)
class Stretches:
    """The longest of what a run cannot leave half-way, in seconds, by its name."""

    save_seconds: float = 0.0
    between: tuple[str, float] = ("a step", 0.0)

    def add(self, name: str, seconds: float) -> None:
        """A stretch of the run between two places where it could have ended."""
        if seconds > self.between[1]:
            self.between = (name, seconds)

    @property
    def total_seconds(self) -> float:
        """From a signal to the end of the run, at worst: one stretch, and the save after it."""
        return self.save_seconds + self.between[1]


def grace_seconds(environment: Mapping[str, str], agent: Sequence[str]) -> int:
    """How long torchrun lets a run end. `agent` is torchrun's command line, empty if it is not known."""
    given = [_value(words) for words in _pairs(agent)] + [environment.get(name) for name in _VARIABLES]
    found = next((text for text in given if text and text.isascii() and text.isdecimal()), None)
    return TORCHRUN_GRACE_SECONDS if found is None else int(found)


def agent_command(process: int) -> tuple[str, ...]:
    """The command line of a process; empty where the system does not tell."""
    try:
        text = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ()
    return tuple(text.split("\0"))


def _pairs(agent: Sequence[str]) -> list[tuple[str, str]]:
    return list(pairwise((*agent, "")))


def _value(words: tuple[str, str]) -> str | None:
    name, equals, value = words[0].partition("=")
    if name not in _OPTIONS:
        return None
    return value if equals else words[1]
