"""Expected times by source, and of trainers that no fit has seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from tests.estimate.published_sources import (
    FITTED_WITHOUT,
    by_left_out_table,
    catalogue,
    elsewhere,
    ends_of,
    known_without,
    num_between,
    num_covered,
    report,
    without_their_trainer,
)
from tests.estimate.published_speed import FITTED, errors_of, fit, scores

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_intervals_hold_for_a_trainer_that_no_fit_has_seen() -> None:
    """Not for two runs of nanotron's lowest MFU, 5 and 15 %."""
    found = scores(elsewhere())
    assert (num_covered(found), len(found)) == (15, 17)
    assert median(errors_of(found)) < 0.25


@pytest.mark.slow
def test_intervals_hold_nine_of_ten_rows_of_trainers_left_out() -> None:
    unseen = without_their_trainer()
    every = tuple(score for some in unseen.values() for score in some)
    assert num_covered(every) >= 0.9 * len(every)
    assert all(num_covered(some) >= 0.85 * len(some) for some in unseen.values())
    assert median(errors_of(every)) < 0.13


def test_the_ends_leave_a_twentieth_of_the_rows_beyond_each() -> None:
    (row, *_) = scores(elsewhere()[:1])
    many = [replace(row, published=float(ratio), expected=1.0) for ratio in range(1, 40)]
    assert ends_of(many) == (2, 38)
    assert ends_of(many[:18]) == (1, 18)


@pytest.mark.slow
def test_an_interval_from_the_other_tables_holds_nine_of_ten_tables() -> None:
    """Not nanotron's, whose runs are slower than expected by more than any other table's."""
    every = tuple(score for some in without_their_trainer().values() for score in some)
    inside = {source: (num_between(ends, own), len(own)) for source, ends, own in by_left_out_table(every)}
    missed = {source: counts for source, counts in inside.items() if counts[0] < counts[1]}
    assert missed == {"nanotron/docs/benchmark_summary.svg": (5, 17)}
    assert len(inside) == 10


@pytest.mark.slow
@pytest.mark.parametrize("trainer", FITTED_WITHOUT)
def test_the_coefficients_without_a_trainer_are_those_of_the_fit(trainer: str) -> None:
    found = fit(catalogue(without=trainer))
    for device, is_ampere in (("a100", True), ("h100", False)):
        known = known_without(trainer, device)
        for name in FITTED:
            value = found.value(name, is_ampere=is_ampere)
            assert value == pytest.approx(getattr(known, name).expected, rel=0.02)


@pytest.mark.slow
def test_the_page_has_the_tables_as_they_are_printed() -> None:
    page = (ROOT / "docs" / "evidence" / "estimates.md").read_text(encoding="utf-8")
    assert "\n".join(report()) in page
