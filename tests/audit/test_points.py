"""Every point of the audits has a row, and every row names tests that are there."""

from __future__ import annotations

import pytest

from tests.audit.points import AUDITS, HERE, Point, is_there, points


@pytest.mark.parametrize("point", points(), ids=lambda point: f"{point.audit}-{point.number}")
def test_a_point_names_tests_that_are_there(point: Point) -> None:
    assert point.tests or not point.done
    assert [test for test in point.tests if not is_there(test)] == []


def test_every_file_is_a_point() -> None:
    for audit, numbers in AUDITS.items():
        assert {path.stem for path in (HERE / "points" / audit).iterdir()} == set(numbers)
