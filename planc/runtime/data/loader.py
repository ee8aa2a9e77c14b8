"""Micro-batches for one data-parallel rank. The whole state is how many samples all ranks have consumed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from planc.runtime.data.ahead import Ahead
from planc.runtime.data.dataset import Dataset
from planc.runtime.data.errors import DataError
from planc.runtime.data.masking import TokenMasks
from planc.runtime.data.order import Order, SampleIds, rank_positions, sources_of


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Inputs, labels and position ids [B, S] of sequences `sample_ids` [B]; all int64.

    The label of a position is what its logits are to predict: the next token, or a hidden one itself.
    `sources` [B] are the numbers of their sources in a mixture; None without one. `token_types` [B, S] are
    None unless a sequence holds two texts and the model takes them.
    """

    inputs: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    position_ids: npt.NDArray[np.int64]
    sample_ids: SampleIds
    sources: SampleIds | None = None
    token_types: npt.NDArray[np.int64] | None = None
    pixels: npt.NDArray[np.float32] | None = None
    """[B, patches, values]: of the image of each sequence, if they have one."""


@dataclass(frozen=True, slots=True)
class BatchSource:
    """The sequences that one data-parallel rank reads. `global_batch` and `micro_batch` count sequences."""

    dataset: Dataset
    order: Order
    global_batch: int
    micro_batch: int
    dp_size: int
    dp_rank: int
    masks: TokenMasks | None = None
    """The masks of a masked language model's data; None for others."""

    def __post_init__(self) -> None:
        assert self.order.num_sequences == self.dataset.num_sequences
        if min(self.global_batch, self.micro_batch, self.dp_size) < 1:
            raise DataError(
                "the batch is empty", help="set global_batch, micro_batch and dp_size to at least 1"
            )
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
        """The number of micro steps per step: the gradient accumulation."""
        return self.global_batch // (self.micro_batch * self.dp_size)

    def sample_ids_at(self, step_start: int, *, micro_step: int) -> SampleIds:
        """The sequences of the rank's micro-batch in the step that begins at global position `step_start`."""
        positions = self.places_at(step_start, micro_step=micro_step)
        return self.order.sample_ids(positions.start, count=len(positions))

    def places_at(self, step_start: int, *, micro_step: int) -> range:
        """The global positions of these sequences."""
        return rank_positions(
            step_start,
            global_batch=self.global_batch,
            micro_batch=self.micro_batch,
            dp_size=self.dp_size,
            dp_rank=self.dp_rank,
            micro_step=micro_step,
        )


def micro_batch_of(
    dataset: Dataset,
    sample_ids: SampleIds,
    *,
    masks: TokenMasks | None = None,
    places: Iterable[int] | None = None,
) -> MicroBatch:
    """The given sequences in one micro-batch. Their masks are those of `places`, or of their own numbers."""
    inputs, labels, position_ids = np.empty((3, len(sample_ids), dataset.sequence_length), dtype=np.int64)
    for row, sample_id in enumerate(map(int, sample_ids)):
        inputs[row], labels[row] = dataset[sample_id]
        position_ids[row] = dataset.position_ids(sample_id)
    if masks is not None:
        for row, place in enumerate(sample_ids if places is None else places):
            inputs[row], labels[row] = masks.hide(inputs[row], int(place))
    types = [dataset.token_types(int(sample_id)) for sample_id in sample_ids]
    token_types = None
    if any(row is not None for row in types):
        token_types = np.stack([np.zeros_like(inputs[0]) if row is None else row for row in types])
    images = [values for place in sample_ids if (values := dataset.pixels(int(place))) is not None]
    pixels = np.stack(images) if images else None
    return MicroBatch(inputs, labels, position_ids, sample_ids, token_types=token_types, pixels=pixels)


def step_batches(source: BatchSource, start: int, /) -> list[MicroBatch]:
    """The rank's micro-batches of the step that begins at global position `start`.

    They are parts of the same arrays: to make some for each micro-batch takes longer than to read it.
    """
    number, size = source.num_micro_steps, source.micro_batch
    ids = [source.sample_ids_at(start, micro_step=micro_step) for micro_step in range(number)]
    places = chain(*(source.places_at(start, micro_step=micro_step) for micro_step in range(number)))
    step = micro_batch_of(source.dataset, np.concatenate(ids), masks=source.masks, places=places)
    parts = (array.reshape(number, size, -1) for array in (step.inputs, step.labels, step.position_ids))
    types = [None] * number if step.token_types is None else step.token_types.reshape(number, size, -1)
    pixels: Any = [None] * number
    if step.pixels is not None:
        pixels = step.pixels.reshape(number, size, *step.pixels.shape[1:])
    sizes = source.order.sizes
    sources = [sources_of(one, sizes) if sizes else None for one in ids]
    return [MicroBatch(*arrays) for arrays in zip(*parts, ids, sources, types, pixels, strict=True)]


class BatchLoader:
    """Reads a BatchSource step by step. `samples_consumed`, over all ranks, is the state to save.

    `prefetch` steps are prepared ahead by a thread. The samples of a step depend only on where it starts, so
    prefetching changes neither the samples nor their order, and is not part of the state.
    """

    def __init__(
        self, source: BatchSource, *, prefetch: int = 0, patience_seconds: float | None = None
    ) -> None:
        self.source = source
        self.samples_consumed = 0
        self._counted = source.order.fresh()
        make = partial(step_batches, source)
        self._ahead = (
            Ahead(make, depth=prefetch, stride=source.global_batch, patience_seconds=patience_seconds)
            if prefetch
            else None
        )

    def next_step(self) -> list[MicroBatch]:
        """The rank's micro-batches of the next step, `num_micro_steps` of them."""
        start = self.samples_consumed
        batches = step_batches(self.source, start) if self._ahead is None else self._ahead.take(start)
        self.samples_consumed += self.source.global_batch
        return batches

    def consumed(self, *, steps_before: int = 0) -> tuple[int, ...]:
        """The sequences of each source of a mixture that all ranks have consumed, some steps earlier."""
        return self._counted.consumed(self.samples_consumed - steps_before * self.source.global_batch)

    @property
    def epoch(self) -> float:
        """The number of passes over all sequences so far."""
        return self.samples_consumed / self.source.order.num_sequences

    def next_ids(self) -> list[int]:
        """The sequences of the rank's next step."""
        source = self.source
        micro_steps = range(source.num_micro_steps)
        ids = (source.sample_ids_at(self.samples_consumed, micro_step=step) for step in micro_steps)
        return [int(sample_id) for found in ids for sample_id in found]

    def load_state(self, samples_consumed: int) -> None:
        """Resume where a run with any dp size and any batch sizes had consumed this many samples."""
        if samples_consumed < 0:
            raise DataError(f"samples_consumed is {samples_consumed}", help="restore an undamaged checkpoint")
        self.samples_consumed = samples_consumed
