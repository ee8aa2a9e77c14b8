"""Micro-batches of a fixed set of sequences, the same number for every data-parallel rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planc.runtime.data.dataset import Dataset
from planc.runtime.data.loader import MicroBatch, micro_batch_of
from planc.runtime.data.masking import TokenMasks
from planc.runtime.data.order import SampleIds
from planc.runtime.data.packing import IGNORED_LABEL


@dataclass(frozen=True)
class EvaluationSet:
    """The first `num_sequences` of a dataset. Not slotted, because its labels are counted once."""

    dataset: Dataset
    num_sequences: int
    micro_batch: int
    fingerprint: str = ""
    """The hash of the whole dataset, as of training data."""
    masks: TokenMasks | None = None
    """The masks of a masked language model's data; None for others."""

    @cached_property
    def num_target_tokens(self) -> int:
        """The number of labels in all sequences."""
        batches = (self._batch(np.array([index])) for index in range(self.num_sequences))
        return sum(int(np.count_nonzero(batch.labels != IGNORED_LABEL)) for batch in batches)

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
            batch = self._batch(np.minimum(places, self.num_sequences - 1))
            batch.labels[places >= self.num_sequences] = IGNORED_LABEL
            batch.sample_ids[places >= self.num_sequences] = -1
            yield batch

    def _batch(self, sample_ids: SampleIds) -> MicroBatch:
        return micro_batch_of(self.dataset, sample_ids, masks=self.masks)
