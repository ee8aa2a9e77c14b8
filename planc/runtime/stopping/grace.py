"""The time that a run needs to stop cleanly, and the time that its launcher waits for that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

TORCHRUN_GRACE_SECONDS = 30
"""The time that torchrun waits by default after it has forwarded a signal."""
_VARIABLES = ("PET_SHUTDOWN_TIMEOUT", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT")
"""The variables that torchrun reads, in this order, without the option."""
_OPTIONS = ("--shutdown-timeout", "--shutdown_timeout")


@dataclass(slots=True)
class Stretches:
    """The longest stretches of a run that it can't interrupt, in seconds."""

    save_seconds: float = 0.0
    between: tuple[str, float] = ("a step", 0.0)

    def add(self, name: str, seconds: float) -> None:
        """Record a stretch between two points where the run could have stopped."""
        if seconds > self.between[1]:
            self.between = (name, seconds)

    @property
    def total_seconds(self) -> float:
        """Seconds from a signal to the end of the run, at worst: one stretch, and a save."""
        return self.save_seconds + self.between[1]


def grace_seconds(environment: Mapping[str, str], agent: Sequence[str]) -> int:
    """Return how long torchrun waits for a run to end. `agent` is its command line, empty if unknown."""
    given = [_value(words) for words in _pairs(agent)] + [environment.get(name) for name in _VARIABLES]
    seconds = next((text for text in given if text and text.isascii() and text.isdecimal()), None)
    return TORCHRUN_GRACE_SECONDS if seconds is None else int(seconds)


def agent_command(process: int) -> tuple[str, ...]:
    """The command line of a process; empty if the system does not show it."""
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
