"""Peaks that others published, and what a wrong estimate would make of them."""

from __future__ import annotations

from statistics import mean

from tests.estimate.published import (
    Score,
    baselines,
    confusion,
    controls,
    errors_of,
    p90,
    scores,
)


def mean_error(found: tuple[Score, ...]) -> float:
    return mean(abs(error) for error in errors_of(found))


def test_published_peaks_are_met() -> None:
    errors = errors_of(scores())
    assert len(errors) == 24
    assert mean(map(abs, errors)) <= 0.03
    assert p90(errors) <= 0.07
    lowest, *others = sorted(errors)
    # 70B on tp 8 without asynchronous TP, float8: 71.9 GiB against 67.6 of its asynchronous twin, which the
    # formula does not tell apart. What the first holds more is not explained, so it is not in the formula.
    assert -0.09 <= lowest < -0.08
    assert min(others) >= -0.08


def test_every_run_that_did_not_fit_is_told_from_those_that_did() -> None:
    assert [*confusion(scores()).values()] == [24, 0, 0, 7]


def test_an_estimate_of_another_run_misses() -> None:
    wrong = {name: mean_error(found) for name, found in controls()}
    assert len(wrong) == 4
    assert min(wrong.values()) > 4 * mean_error(scores())


def test_rules_of_thumb_miss_by_more() -> None:
    others = {name: mean_error(found) for name, found in baselines()}
    assert len(others) == 2
    assert min(others.values()) > 10 * mean_error(scores())
