"""What is said of losses that stand out and of numbers that are none."""

from __future__ import annotations

import json
import math

from planc.runtime.loss_window import Memory, level
from planc.runtime.numerics import MicroBatch, Statement, describe, statement

WINDOW = (2.0, 2.1, 1.9, 2.0, 2.05)


def test_the_deviation_is_that_of_a_normal_distribution() -> None:
    found = level((1.0, 2.0, 3.0, 4.0, 5.0))
    assert (found.median, found.deviation) == (3.0, 1.4826)


def test_losses_that_hardly_differ_deviate_by_a_hundredth() -> None:
    assert level((2.0,) * 5).deviation == 0.02


def test_a_loss_is_a_spike_from_so_many_deviations_above_the_median_on() -> None:
    memory = Memory(WINDOW)
    limit = level(WINDOW).median + 6.0 * level(WINDOW).deviation
    assert memory.spike(limit - 1e-9, deviations=6.0, window=5) is None
    assert memory.spike(limit + 1e-9, deviations=6.0, window=5) is not None
    assert memory.spike(0.0, deviations=6.0, window=5) is None


def test_no_loss_is_judged_by_too_few() -> None:
    assert Memory(WINDOW[:4]).spike(1e9, deviations=6.0, window=5) is None


def test_the_window_keeps_the_last_losses_that_were_taken() -> None:
    memory = Memory(WINDOW).skipped().skipped()
    assert memory == Memory(WINDOW, 2)
    assert memory.taken(1.8, window=5) == Memory((*WINDOW[1:], 1.8))


def test_ranks_with_the_same_sequences_are_named_together() -> None:
    batch = MicroBatch(0, math.nan, (4, 17))
    found = describe([Statement(0, (batch,), ()), Statement(1, (batch,), ("lm_head.weight",))])
    assert found == (
        "ranks 0, 1, micro-batch 0 (sequences 4, 17): loss nan; lm_head.weight itself is NaN or inf on rank 1"
    )


def test_many_micro_batches_are_named_in_part() -> None:
    batches = tuple(MicroBatch(index, math.inf, (index,)) for index in range(11))
    found = describe([Statement(0, batches, ())])
    assert "micro-batch 7 (sequence 7): loss inf; and 3 more micro-batches" in found


def test_a_statement_goes_through_json() -> None:
    given = Statement(3, (MicroBatch(1, -math.inf, (5,)),), ("a.weight",))
    assert statement(3, json.loads(json.dumps(given.data(), allow_nan=False))) == given
