"""The map of packages, and the import law that contributors read."""

from __future__ import annotations

from tests.architecture.map import CONTRIBUTING, END, START, rooms, with_law


def test_every_package_says_what_it_holds() -> None:
    assert {room.name for room in rooms() if not room.holds.endswith(".")} == set()


def test_contributing_has_the_import_law() -> None:
    """If this fails: `python -m tests.architecture.map --contributing`."""
    text = CONTRIBUTING.read_text(encoding="utf-8")
    assert START in text and END in text
    assert with_law(text) == text
