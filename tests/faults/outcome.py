"""What a campaign has found: one row of the matrix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Injection:
    """One fault and what became of it: `problem` is empty if it was survived as promised.

    `seconds` is from the fault to a checkpoint loaded again, or to the refusal where nothing may be loaded.
    """

    name: str
    problem: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the matrix: a class of faults, what is promised, every injection."""

    numbers: str
    """The rows of the catalogue that it covers."""
    fault: str
    promise: str
    injections: tuple[Injection, ...]

    @property
    def survived(self) -> int:
        return sum(not one.problem for one in self.injections)

    @property
    def worst_seconds(self) -> float:
        return max((one.seconds for one in self.injections), default=0.0)

    def problems(self) -> Iterator[str]:
        """Every broken promise, with the fault that broke it."""
        return (f"{one.name}: {one.problem}" for one in self.injections if one.problem)


def first_problem(problems: Iterable[str]) -> str:
    """The first that is not empty; empty if none is."""
    return next((problem for problem in problems if problem), "")
