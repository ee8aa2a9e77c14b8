"""Evaluation sets: every rank runs equally often, and every sequence counts once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from planc.runtime.data.evaluation import EvaluationSet
from planc.runtime.data.packing import IGNORED_LABEL, pack
from planc.runtime.data.sources import Document
from planc.runtime.data.tokenizers import ByteTokenizer

TEXT = "".join(chr(33 + place % 90) for place in range(4 * 23))
DATASET = pack([Document("here", TEXT, len(TEXT))], tokenizer=ByteTokenizer(), sequence_length=4)


@given(num_sequences=st.integers(1, 23), micro_batch=st.integers(1, 4), dp_size=st.integers(1, 8))
def test_labels_of_all_ranks_are_those_of_the_set(num_sequences: int, micro_batch: int, dp_size: int) -> None:
    evaluation = EvaluationSet(DATASET, num_sequences, micro_batch)
    ranks = [list(evaluation.micro_batches(dp_size=dp_size, dp_rank=dp_rank)) for dp_rank in range(dp_size)]
    assert {len(batches) for batches in ranks} == {evaluation.num_micro_batches(dp_size=dp_size)}
    shapes = {batch.inputs.shape for batches in ranks for batch in batches}
    assert shapes == {(micro_batch, 4)}
    labels = np.concatenate([batch.labels.flatten() for batches in ranks for batch in batches])
    found = sorted(labels[labels != IGNORED_LABEL].tolist())
    assert found == sorted(label for index in range(num_sequences) for label in DATASET[index][1].tolist())
    assert evaluation.num_target_tokens == len(found)
