"""The points of the audit: what was done about each, and the tests that show it."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from tests.catalogue.declared import exists

HERE = Path(__file__).parent

NUMBERS = ("0", "1", "1b", *(str(number) for number in range(2, 23)), "versions")
"""Every point of the audit, in its order."""


@dataclass(frozen=True, slots=True)
class Point:
    """One file of `points/`, named by the point's number."""

    number: str
    title: str
    done: str
    tests: tuple[str, ...]
    """`tests/x.py::test_y`, with a case in brackets if one represents the point."""
    others: str
    """What else of the same class was found; an empty text if nothing was."""
    open: str = ""
    """The missing parts, if any."""


def points() -> tuple[Point, ...]:
    """Every point, in the audit's order; raises FileNotFoundError for one without a file."""
    return tuple(map(_read, NUMBERS))


def _read(number: str) -> Point:
    fields = tomllib.loads((HERE / "points" / f"{number}.toml").read_text(encoding="utf-8"))
    return Point(number=number, **{**fields, "tests": tuple(fields["tests"])})


def is_there(test: str) -> bool:
    """Whether a test that a point names is in the plain suite or in the slow one."""
    return exists(test) or exists(test, slow=True)
