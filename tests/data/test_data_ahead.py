"""Working ahead: the same steps in the same order, and a process that ends."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planc.runtime.data.ahead import Ahead
from planc.runtime.data.errors import DataError
from planc.runtime.data.loader import BatchLoader, BatchSource
from planc.runtime.data.order import SampleOrder
from planc.runtime.data.packing import pack
from planc.runtime.data.sources import Document
from planc.runtime.data.tokenizers import ByteTokenizer
from tests.patience import WAIT_SECONDS

DATASET = pack([Document("here", "some text " * 30, 300)], tokenizer=ByteTokenizer(), sequence_length=7)
SOURCE = BatchSource(DATASET, SampleOrder(DATASET.num_sequences, 3), 4, 1, 2, 1)


def ids(loader: BatchLoader) -> list[list[int]]:
    return [batch.sample_ids.tolist() for batch in loader.next_step()]


@settings(max_examples=25, deadline=None)
@given(depth=st.integers(1, 5), jumps=st.lists(st.tuples(st.integers(0, 90), st.integers(1, 4)), max_size=4))
def test_working_ahead_changes_no_sample_wherever_a_run_goes_on(
    depth: int, jumps: list[tuple[int, int]]
) -> None:
    ahead, plain = BatchLoader(SOURCE, prefetch=depth), BatchLoader(SOURCE)
    for place, num_steps in [(0, 2), *jumps]:
        for loader in (ahead, plain):
            loader.load_state(place)
        assert [ids(ahead) for _ in range(num_steps)] == [ids(plain) for _ in range(num_steps)]
        assert ahead.samples_consumed == plain.samples_consumed == place + 4 * num_steps


def test_what_was_made_ahead_is_no_state() -> None:
    loader = BatchLoader(SOURCE, prefetch=3)
    loader.next_step()
    assert loader.samples_consumed == SOURCE.global_batch


def test_the_next_steps_are_made_while_one_is_used() -> None:
    made: list[int] = []
    third = threading.Event()

    def make(start: int) -> int:
        made.append(start)
        if len(made) == 3:
            third.set()
        return start

    ahead = Ahead(make, depth=2, stride=10)
    assert ahead.take(0) == 0
    assert third.wait(timeout=WAIT_SECONDS)
    assert made == [0, 10, 20]


def test_a_failure_of_the_thread_is_raised_where_the_step_is_taken() -> None:
    def make(start: int) -> int:
        raise ValueError(f"no step at {start}")

    with pytest.raises(ValueError, match="no step at 5"):
        Ahead(make, depth=1, stride=1).take(5)


def test_the_thread_ends_with_its_loader() -> None:
    others = threading.enumerate()
    loader = BatchLoader(SOURCE, prefetch=1)
    loader.next_step()
    (thread,) = [one for one in threading.enumerate() if one not in others]
    del loader
    gc.collect()
    thread.join(timeout=WAIT_SECONDS)
    assert not thread.is_alive()


def test_a_process_ends_while_a_step_is_being_made() -> None:
    program = (
        "import time\n"
        "from planc.runtime.data.ahead import Ahead\n"
        "def make(start):\n"
        f"    time.sleep(0 if start == 0 else {2 * WAIT_SECONDS})\n"
        "ahead = Ahead(make, depth=1, stride=1)\n"
        "ahead.take(0)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=WAIT_SECONDS)


def test_micro_batches_carry_the_positions_of_their_sequences() -> None:
    texts = [Document("here", "ab" * number, 2 * number) for number in range(1, 9)]
    dataset = pack(texts, tokenizer=ByteTokenizer(), sequence_length=5, isolates=True)
    order = SampleOrder(dataset.num_sequences, 1)
    (batch, *_) = BatchLoader(BatchSource(dataset, order, 4, 2, 1, 0)).next_step()
    expected = np.stack([dataset.position_ids(int(index)) for index in batch.sample_ids])
    assert (batch.position_ids == expected).all()


def test_a_thread_that_makes_nothing_is_not_waited_for_without_end() -> None:
    stuck = threading.Event()
    ahead = Ahead(lambda start: stuck.wait(), depth=1, stride=1, patience_seconds=0.05)
    with pytest.raises(DataError, match=r"has produced no batch for 0\.05 s"):
        ahead.take(0)
    stuck.set()


def test_the_sequences_of_the_next_step_are_known_before_it_is_read() -> None:
    loader = BatchLoader(SOURCE)
    for _ in range(3):
        expected = loader.next_ids()
        assert [one for micro_step in ids(loader) for one in micro_step] == expected
