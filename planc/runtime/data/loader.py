"""Micro-batches for one data-parallel rank. The whole state is how many samples all ranks have consumed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planc.runtime.data.errors import DataError
from planc.runtime.data.order import SampleIds, SampleOrder, rank_positions
from planc.runtime.data.packing import PackedDataset


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """inputs [B, S] and labels [B, S], already shifted, of the sequences `sample_ids` [B]; all int64."""

    inputs: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    sample_ids: SampleIds


@dataclass(frozen=True, slots=True)
class BatchSource:
    """What one data-parallel rank reads. `global_batch` and `micro_batch` count sequences."""

    dataset: PackedDataset
    order: SampleOrder
    global_batch: int
    micro_batch: int
    dp_size: int
    dp_rank: int

    def __post_init__(self) -> None:
        assert self.order.num_sequences == self.dataset.num_sequences
        if min(self.global_batch, self.micro_batch, self.dp_size) < 1:
            raise DataError("an empty batch", help="global_batch, micro_batch and dp_size are 1 or more")
        if not 0 <= self.dp_rank < self.dp_size:
            raise DataError(
                f"dp_rank is {self.dp_rank} of dp_size {self.dp_size}",
                help="ranks count from 0 to dp_size - 1",
            )
        if self.global_batch % (self.micro_batch * self.dp_size):
            raise DataError(
                f"a global batch of {self.global_batch} is not a whole number of micro steps of "
                f"{self.dp_size} ranks * {self.micro_batch}",
                help="make global_batch a multiple of dp_size * micro_batch",
            )

    @property
    def num_micro_steps(self) -> int:
        """Micro steps of one step: the gradient accumulation."""
        return self.global_batch // (self.micro_batch * self.dp_size)

    def micro_batch_at(self, step_start: int, *, micro_step: int) -> MicroBatch:
        """The rank's micro-batch in the step that begins at global position `step_start`."""
        positions = rank_positions(
            step_start,
            global_batch=self.global_batch,
            micro_batch=self.micro_batch,
            dp_size=self.dp_size,
            dp_rank=self.dp_rank,
            micro_step=micro_step,
        )
        sample_ids = self.order.sample_ids(positions.start, count=len(positions))
        inputs, labels = zip(*(self.dataset[int(sample_id)] for sample_id in sample_ids), strict=True)
        return MicroBatch(np.stack(inputs), np.stack(labels), sample_ids)


class BatchLoader:
    """Reads a BatchSource step after step. `samples_consumed`, over all ranks, is the state to save."""

    def __init__(self, source: BatchSource) -> None:
        self.source = source
        self.samples_consumed = 0

    def next_step(self) -> list[MicroBatch]:
        """The rank's micro-batches of the next step, `num_micro_steps` of them."""
        batches = [
            self.source.micro_batch_at(self.samples_consumed, micro_step=micro_step)
            for micro_step in range(self.source.num_micro_steps)
        ]
        self.samples_consumed += self.source.global_batch
        return batches

    def load_state(self, samples_consumed: int) -> None:
        """Goes on where a run with any dp size and any batch sizes had consumed so many samples."""
        if samples_consumed < 0:
            raise DataError(f"samples_consumed is {samples_consumed}", help="restore an undamaged checkpoint")
        self.samples_consumed = samples_consumed
