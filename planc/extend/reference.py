"""An extension as a plan and its graph name it."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from planc.record import record

Argument = bool | int | float | str | tuple[bool | int | float | str, ...]


@record(kw_only=True)
class Extension:
    """Code that a plan brings: what is registered as `entry` in `file`, with the plan's arguments.

    `file` is relative to the plan's directory. `digest` is the SHA-256 of its text with newlines as `\\n`:
    a run with another text is refused, and a change of it is a change of the plan.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "strict": True}

    entry: str
    kind: str
    file: str
    digest: str
    arguments: tuple[tuple[str, Argument], ...]

    def __str__(self) -> str:
        """`focal(gamma=2.0) of losses.py (sha256 1a2b...)`, with the whole digest."""
        arguments = ", ".join(f"{name}={_written(value)}" for name, value in self.arguments)
        return f"{self.entry}({arguments}) of {self.file} (sha256 {self.digest})"


@record(kw_only=True)
class OwnMetric:
    """A metric of the plan's own code, and how the numbers of all ranks become one."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "strict": True}

    extension: Extension
    reduce: Literal["mean", "sum", "max"]

    def __str__(self) -> str:
        return f"{self.extension}, {self.reduce} of all ranks"


@record(kw_only=True)
class OwnCallback:
    """A callback of the plan's own code, with the ranks and the points at which it is called."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "strict": True}

    extension: Extension
    ranks: Literal["zero", "all"]
    points: tuple[str, ...]

    def __str__(self) -> str:
        where = "rank 0" if self.ranks == "zero" else "all ranks"
        return f"{self.extension}, {', '.join(self.points)} on {where}"


def _written(value: Argument) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_written, value))}]"
    return f'"{value}"' if isinstance(value, str) else repr(value)
