"""The sample order depends on seed and position alone, whatever the mesh."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planc.runtime.data.order import (
    MAX_IDS_IN_MEMORY,
    Epoch,
    SampleOrder,
    epoch_permutation,
    rank_positions,
)

sizes = st.integers(1, 40)
seeds = st.integers(0, 2**64)


@given(num_sequences=sizes, seed=seeds, epoch=st.integers(0, 50))
def test_every_epoch_visits_every_sequence_once(num_sequences: int, seed: int, epoch: int) -> None:
    ids = SampleOrder(num_sequences, seed).sample_ids(epoch * num_sequences, count=num_sequences)
    assert sorted(ids.tolist()) == list(range(num_sequences))


@given(num_sequences=sizes, seed=seeds, cuts=st.lists(st.integers(0, 200), max_size=6))
def test_the_order_is_the_same_however_it_is_read(num_sequences: int, seed: int, cuts: list[int]) -> None:
    whole = SampleOrder(num_sequences, seed).sample_ids(0, count=200).tolist()
    order = SampleOrder(num_sequences, seed)
    edges = sorted({0, 200, *cuts})
    parts = [order.sample_ids(start, count=end - start) for start, end in pairwise(edges)]
    assert np.concatenate(parts).tolist() == whole
    for start in reversed(edges[:-1]):
        assert order.sample_ids(start, count=1).tolist() == whole[start : start + 1]


def test_epochs_and_seeds_have_their_own_order() -> None:
    first = SampleOrder(100, 0)
    orders = [
        first.sample_ids(0, count=100),
        first.sample_ids(100, count=100),
        SampleOrder(100, 1).sample_ids(0, count=100),
    ]
    assert len({tuple(order.tolist()) for order in orders}) == 3


def test_the_order_is_pinned_for_good() -> None:
    # A checkpoint holds a position, not an order: a change here breaks every resumed run.
    assert SampleOrder(10, 42).sample_ids(5, count=10).tolist() == [6, 0, 7, 2, 5, 1, 2, 8, 5, 3]


def test_no_more_than_neighbouring_epochs_are_kept() -> None:
    order = SampleOrder(3, 0)
    order.sample_ids(0, count=300)
    assert len(order._epochs) <= 3


@given(
    step_start=st.integers(0, 10**12),
    micro_batch=st.integers(1, 5),
    dp_size=st.integers(1, 8),
    num_micro_steps=st.integers(1, 5),
)
def test_ranks_and_micro_steps_cover_the_step_exactly(
    step_start: int, micro_batch: int, dp_size: int, num_micro_steps: int
) -> None:
    global_batch = micro_batch * dp_size * num_micro_steps
    taken = [
        position
        for micro_step in range(num_micro_steps)
        for dp_rank in range(dp_size)
        for position in rank_positions(
            step_start,
            global_batch=global_batch,
            micro_batch=micro_batch,
            dp_size=dp_size,
            dp_rank=dp_rank,
            micro_step=micro_step,
        )
    ]
    assert taken == list(range(step_start, step_start + global_batch))


@pytest.mark.parametrize("num_sequences", [1, 2, 63, 64, 65, 1_000, 4_097])
@pytest.mark.parametrize("bucket_size", [1, 2, 64, 1_024])
def test_an_order_sorted_in_buckets_is_the_same(num_sequences: int, bucket_size: int) -> None:
    epoch = Epoch(num_sequences, 5, 2, bucket_size=bucket_size)
    found: list[int] = []
    while len(found) < num_sequences:
        found += epoch.ids(len(found), count=7).tolist()
    expected = epoch_permutation(num_sequences, seed=5, epoch=2).tolist()
    assert found == expected
    for offset in range(0, num_sequences, 97):
        assert epoch.ids(offset, count=1).tolist() == expected[offset : offset + 1]


def test_an_order_of_millions_keeps_a_bucket_of_it_in_memory() -> None:
    num_sequences = 5 * MAX_IDS_IN_MEMORY
    order, expected = SampleOrder(num_sequences, 7), epoch_permutation(num_sequences, seed=7, epoch=1)
    for offset in (0, num_sequences // 3, num_sequences - 5):
        found = order.sample_ids(num_sequences + offset, count=5)
        assert found.tolist() == expected[offset : offset + 5].tolist()
    assert len(order._epochs[1].ids(0, count=num_sequences)) < 2 * MAX_IDS_IN_MEMORY
