"""The points of the two audits: what was done about each, and the tests that show it."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from tests.catalogue.declared import exists

HERE = Path(__file__).parent

_COUNTED = tuple(map(str, range(2, 23)))

AUDITS = {
    "first": ("0", "1", "1b", *_COUNTED, "versions"),
    "second": ("0", "1", *_COUNTED),
}
"""Every point's number, in its audit's order."""


@dataclass(frozen=True, slots=True)
class Point:
    """One file of `points/AUDIT/`, named by the point's number."""

    audit: str
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
    """Every point, in the audits' order; raises FileNotFoundError for one without a file."""
    return tuple(_read(audit, number) for audit, numbers in AUDITS.items() for number in numbers)


def _read(audit: str, number: str) -> Point:
    fields = tomllib.loads((HERE / "points" / audit / f"{number}.toml").read_text(encoding="utf-8"))
    return Point(audit=audit, number=number, **{**fields, "tests": tuple(fields["tests"])})


def is_there(test: str) -> bool:
    """Whether a test that a point names is in the plain suite or in the slow one."""
    return exists(test) or exists(test, slow=True)
