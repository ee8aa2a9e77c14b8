"""Micro-batches of a fixed set of sequences, the same number for every data-parallel rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planc.runtime.data.dataset import Dataset
from planc.runtime.data.loader import MicroBatch, micro_batch_of
from planc.runtime.data.packing import IGNORED_LABEL


@dataclass(frozen=True)
class EvaluationSet:
    """The first `num_sequences` of a dataset. Not slotted, because its labels are counted once."""

    dataset: Dataset
    num_sequences: int
    micro_batch: int
    fingerprint: str = ""
    """The hash of the whole dataset, as of training data."""

    @cached_property
    def num_target_tokens(self) -> int:
        """The number of labels in all sequences."""
        return sum(
            int(np.count_nonzero(self.dataset[index][1] != IGNORED_LABEL))
            for index in range(self.num_sequences)
        )

    def num_micro_batches(self, *, dp_size: int) -> int:
        """The number for every rank: as many as the rank with the most sequences needs."""
        return -(-self.num_sequences // (self.micro_batch * dp_size))

    def micro_batches(self, *, dp_size: int, dp_rank: int) -> Iterator[MicroBatch]:
        """One rank's share. If the set is too small for all ranks, sequences repeat without their labels.

        The number of such a sequence is -1.
        """
        assert 0 <= dp_rank < dp_size
        for number in range(self.num_micro_batches(dp_size=dp_size)):
            first = (number * dp_size + dp_rank) * self.micro_batch
            places = np.arange(first, first + self.micro_batch, dtype=np.int64)
            batch = micro_batch_of(self.dataset, np.minimum(places, self.num_sequences - 1))
            batch.labels[places >= self.num_sequences] = IGNORED_LABEL
            batch.sample_ids[places >= self.num_sequences] = -1
            yield batch
