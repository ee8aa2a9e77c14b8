"""Speeds that others published, against planc's expectations and bounds."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from planc.estimate.efficiency import efficiencies_of
from tests.estimate.published_speed import (
    FITTED,
    beaten,
    covered,
    errors_of,
    fit,
    pairs_in_order,
    report,
    rows,
    scores,
    spearman,
    used_to,
)


@pytest.mark.slow
def test_rows_that_no_fit_has_seen_are_met() -> None:
    found = scores(used_to("score"))
    assert len(found) == 19
    assert spearman(found) >= 0.95
    assert median(errors_of(found)) <= 0.15
    assert not beaten(found)
    assert covered(found) >= 0.9


@pytest.mark.slow
def test_every_row_is_met() -> None:
    """Issue 19: Spearman at least 0.95, median error at most 15 %, three of four pairs, no bound beaten."""
    found = scores(rows())
    assert len(found) == 228
    assert spearman(found) >= 0.95
    assert median(errors_of(found)) <= 0.15
    assert not beaten(found)
    assert covered(found) >= 0.9
    right, number = pairs_in_order(found)
    assert number > 800 and right >= 0.75 * number
    right, number = pairs_in_order(found, up_to=1.15)
    assert number > 200 and right >= 0.75 * number


@pytest.mark.slow
def test_the_coefficients_are_those_of_the_fit() -> None:
    found = fit(used_to("fit"))
    for name in FITTED:
        for device, is_ampere in (("a100", True), ("h100", False)):
            shipped = getattr(efficiencies_of(device), name).expected
            assert found.value(name, is_ampere=is_ampere) == pytest.approx(shipped, rel=0.02)


def test_a_row_is_used_once() -> None:
    assert [len(used_to(purpose)) for purpose in ("fit", "score", "test")] == [18, 19, 191]


@pytest.mark.slow
def test_the_page_has_the_table_as_it_is_printed() -> None:
    page = Path(__file__).parents[2] / "docs" / "evidence" / "estimates.md"
    text = page.read_text(encoding="utf-8")
    assert "\n".join(report()) in text
