"""The measurement of latencies measures, and a key stroke is not slow by an order of magnitude."""

from __future__ import annotations

import statistics

import pytest

from tests.lsp.editor import editing
from tests.lsp.latency import BUDGET_SECONDS, SIZES, measure, text_of


@pytest.mark.parametrize("num_lines", SIZES)
def test_a_measured_plan_has_its_number_of_lines(num_lines: int) -> None:
    assert text_of(num_lines).count("\n") == num_lines


def test_a_key_stroke_in_a_short_plan_is_not_slow() -> None:
    """Ten times the budget: tests run beside others."""
    with editing() as editor:
        _, keys, faults, *asked = measure(editor, min(SIZES))
    assert statistics.median(keys) < 10 * BUDGET_SECONDS
    assert statistics.median(faults) < 10 * BUDGET_SECONDS
    assert len(asked) == 3
