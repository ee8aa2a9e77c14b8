"""Loading: the same samples on every mesh, and an exact resume on another."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planc.runtime.data.errors import DataError
from planc.runtime.data.loader import BatchLoader, BatchSource
from planc.runtime.data.order import SampleOrder
from planc.runtime.data.packing import PackedDataset, pack
from planc.runtime.data.sources import Document
from planc.runtime.data.tokenizers import ByteTokenizer

GLOBAL_BATCH = 24
MESHES = [(micro_batch, dp_size) for micro_batch in (1, 2, 3) for dp_size in (1, 2, 3, 4, 8)
          if GLOBAL_BATCH % (micro_batch * dp_size) == 0]  # fmt: skip


def dataset_of(num_sequences: int) -> PackedDataset:
    text = "".join(chr(32 + position % 90) for position in range(4 * num_sequences))
    return pack([Document("here", text, len(text))], tokenizer=ByteTokenizer(), sequence_length=4)


DATASET = dataset_of(37)


def loaders(micro_batch: int, dp_size: int, *, samples_consumed: int = 0) -> list[BatchLoader]:
    """The loader of every data-parallel rank."""
    order = SampleOrder(DATASET.num_sequences, 7)
    found = [
        BatchLoader(BatchSource(DATASET, order, GLOBAL_BATCH, micro_batch, dp_size, dp_rank))
        for dp_rank in range(dp_size)
    ]
    for loader in found:
        loader.load_state(samples_consumed)
    return found


def step_ids(ranks: list[BatchLoader]) -> list[int]:
    """Sample ids of the next step over all ranks, in order of micro step, then rank."""
    steps = [rank.next_step() for rank in ranks]
    return [
        sample_id
        for micro_step in range(len(steps[0]))
        for batches in steps
        for sample_id in batches[micro_step].sample_ids.tolist()
    ]


def test_a_micro_batch_holds_its_sequences() -> None:
    (loader,) = loaders(3, 1)
    batches = loader.next_step()
    assert len(batches) == 8
    for batch in batches:
        assert batch.inputs.shape == batch.labels.shape == (3, 4)
        assert batch.inputs.dtype == batch.labels.dtype == batch.sample_ids.dtype == np.int64
        for row, sample_id in enumerate(batch.sample_ids.tolist()):
            inputs, labels = DATASET[sample_id]
            assert batch.inputs[row].tolist() == inputs.tolist()
            assert batch.labels[row].tolist() == labels.tolist()


@pytest.mark.parametrize(("micro_batch", "dp_size"), MESHES)
def test_every_mesh_sees_the_same_samples_in_every_step(micro_batch: int, dp_size: int) -> None:
    reference, ranks = loaders(1, 1), loaders(micro_batch, dp_size)
    for _ in range(4):
        assert step_ids(ranks) == step_ids(reference)


@given(legs=st.lists(st.tuples(st.sampled_from(MESHES), st.integers(1, 3)), min_size=2, max_size=5))
def test_resuming_at_other_dp_sizes_neither_repeats_nor_loses_a_sample(
    legs: list[tuple[tuple[int, int], int]],
) -> None:
    seen: list[int] = []
    samples_consumed = 0
    for (micro_batch, dp_size), num_steps in legs:
        ranks = loaders(micro_batch, dp_size, samples_consumed=samples_consumed)
        for _ in range(num_steps):
            seen += step_ids(ranks)
        (samples_consumed,) = {rank.samples_consumed for rank in ranks}
    assert samples_consumed == len(seen)
    assert seen == SampleOrder(DATASET.num_sequences, 7).sample_ids(0, count=len(seen)).tolist()


def test_the_state_of_a_checkpoint_is_one_count() -> None:
    (loader,) = loaders(2, 1)
    loader.next_step()
    loader.next_step()
    assert loader.samples_consumed == 2 * GLOBAL_BATCH


@pytest.mark.parametrize(
    ("global_batch", "micro_batch", "dp_size", "dp_rank", "fault"),
    [
        (10, 2, 3, 0, r"global batch of 10 is not a whole number of micro steps of 3 ranks \* 2"),
        (0, 1, 1, 0, "the batch is empty"),
        (4, 1, 2, 2, "dp_rank is 2 of dp_size 2"),
    ],
)
def test_a_batch_that_does_not_close_is_an_error(
    global_batch: int, micro_batch: int, dp_size: int, dp_rank: int, fault: str
) -> None:
    order = SampleOrder(DATASET.num_sequences, 7)
    with pytest.raises(DataError, match=fault):
        BatchSource(DATASET, order, global_batch, micro_batch, dp_size, dp_rank)


def test_a_negative_state_is_an_error() -> None:
    (loader,) = loaders(1, 1)
    with pytest.raises(DataError, match="samples_consumed is -1"):
        loader.load_state(-1)
