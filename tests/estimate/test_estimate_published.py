"""Peaks that others published, and what a wrong estimate would make of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import mean

import pytest

from tests.estimate.published import (
    Score,
    baselines,
    confusion,
    controls,
    errors_of,
    p90,
    printed,
    scores,
)


def mean_error(found: tuple[Score, ...]) -> float:
    return mean(abs(error) for error in errors_of(found))


def test_published_peaks_are_met() -> None:
    errors = errors_of(scores())
    assert len(errors) == 25
    assert mean(map(abs, errors)) <= 0.03
    assert p90(errors) <= 0.07
    lowest, *others = sorted(errors)
    # 70B on tp 8 without asynchronous TP, float8: 71.9 GiB against 67.6 of its asynchronous twin, which the
    # formula does not tell apart. What the first holds more is not explained, so it is not in the formula.
    assert -0.09 <= lowest < -0.08
    assert min(others) >= -0.08


@pytest.mark.slow
def test_published_peaks_are_met_by_what_estimate_prints() -> None:
    errors = errors_of(printed())
    assert len(errors) == 25
    assert mean(map(abs, errors)) <= 0.03
    assert p90(errors) <= 0.07
    assert [*confusion(printed()).values()] == [25, 0, 0, 7]


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("found", "words"), [(printed, "as it prints them"), (scores, "adjusted")])
def test_the_documentation_has_both_errors(found: Callable[[], tuple[Score, ...]], words: str) -> None:
    sizes = [abs(error) for error in errors_of(found())]
    page = Path(__file__).parents[2] / "docs" / "concepts" / "memory.md"
    published = " ".join(page.read_text(encoding="utf-8").split()).lower()
    text = f"{words}: mean error {100 * mean(sizes):.1f} %, largest {100 * max(sizes):.1f} %"
    assert text in published


def test_every_run_that_did_not_fit_is_told_from_those_that_did() -> None:
    assert [*confusion(scores()).values()] == [25, 0, 0, 7]


@pytest.mark.slow
def test_an_estimate_of_another_run_misses() -> None:
    wrong = {name: mean_error(found) for name, found in controls()}
    assert len(wrong) == 4
    assert min(wrong.values()) > 4 * mean_error(scores())


@pytest.mark.slow
def test_rules_of_thumb_miss_by_more() -> None:
    others = {name: mean_error(found) for name, found in baselines()}
    assert len(others) == 2
    assert min(others.values()) > 10 * mean_error(scores())
