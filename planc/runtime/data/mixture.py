"""Several sources in one order: which sequence of which source each position has, in closed form.

Positions come in blocks. The number of sequences of a source in all blocks up to one is its exact share of
them, rounded, so a block has what is missing. Within a block every source is spread evenly, at random places.
So the order is a function of seed and position, and the state of a run stays one integer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from planc.runtime.data.dataset import Dataset
from planc.runtime.data.order import Epoch, SampleIds
from planc.runtime.data.packing import Stored
from planc.runtime.data.shares import BLOCK, Block, Shares, source_block
from planc.runtime.data.starts import Positions
from planc.tables import plural

_FIRST_SOURCE_STREAM = 2


@dataclass(frozen=True, slots=True)
class MixtureOrder:
    """The endless order of a mixture. A source that ends begins its next epoch, in another order."""

    sizes: tuple[int, ...]
    """The sequences of each source."""
    shares: Shares
    seed: int
    _epochs: dict[tuple[int, int], Epoch] = field(default_factory=dict, init=False, repr=False, compare=False)
    _blocks: dict[int, Block] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def num_sequences(self) -> int:
        return sum(self.sizes)

    def sample_ids(self, start: int, *, count: int) -> SampleIds:
        """Ids [count] at the global positions from `start` on, in the sequences of all sources joined."""
        offsets = (0, *accumulate(self.sizes))
        ids = np.empty(count, dtype=np.int64)
        for number, (source, place) in enumerate(self.places(start, count=count)):
            epoch, within = divmod(place, self.sizes[source])
            ids[number] = offsets[source] + self._epoch(source, epoch).ids(within, count=1)[0]
        return ids

    def places(self, start: int, *, count: int) -> Iterator[tuple[int, int]]:
        """The source at each position, and how many of its sequences came before."""
        for position in range(start, start + count):
            block = self._block(position // BLOCK)
            yield int(block.sources[position % BLOCK]), int(block.places[position % BLOCK])

    def consumed(self, position: int) -> tuple[int, ...]:
        block, within = divmod(position, BLOCK)
        seen = np.bincount(self._block(block).sources[:within], minlength=len(self.sizes))
        return tuple(before + int(more) for before, more in zip(self.shares.totals(block), seen, strict=True))

    def fresh(self) -> MixtureOrder:
        return MixtureOrder(self.sizes, self.shares, self.seed)

    def _block(self, block: int) -> Block:
        if block not in self._blocks:
            # Steps ahead may be in the next one.
            for stale in [other for other in self._blocks if abs(other - block) > 1]:
                del self._blocks[stale]
            self._blocks[block] = source_block(self.shares, seed=self.seed, block=block)
        return self._blocks[block]

    def _epoch(self, source: int, epoch: int) -> Epoch:
        if (source, epoch) not in self._epochs:
            for stale in [one for one in self._epochs if one[0] == source and abs(one[1] - epoch) > 1]:
                del self._epochs[stale]
            size, stream = self.sizes[source], _FIRST_SOURCE_STREAM + source
            self._epochs[source, epoch] = Epoch(size, self.seed, epoch, stream=stream)
        return self._epochs[source, epoch]


@dataclass(frozen=True, slots=True, eq=False)
class JoinedDatasets:
    """The sequences of several datasets, one dataset after another."""

    labels: tuple[str, ...]
    datasets: tuple[Dataset, ...]

    @property
    def sequence_length(self) -> int:
        return self.datasets[0].sequence_length

    @property
    def num_sequences(self) -> int:
        return sum(dataset.num_sequences for dataset in self.datasets)

    @property
    def num_tokens(self) -> int:
        return sum(dataset.num_tokens for dataset in self.datasets)

    @property
    def num_documents(self) -> int:
        return sum(dataset.num_documents for dataset in self.datasets)

    @property
    def num_text_bytes(self) -> int:
        return sum(dataset.num_text_bytes for dataset in self.datasets)

    @property
    def num_dropped_tokens(self) -> int:
        return sum(dataset.num_dropped_tokens for dataset in self.datasets)

    @property
    def max_token_id(self) -> int:
        return max(dataset.max_token_id for dataset in self.datasets)

    def __getitem__(self, index: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        source, within = self.place(index)
        return self.datasets[source][within]

    def position_ids(self, index: int) -> Positions:
        source, within = self.place(index)
        return self.datasets[source].position_ids(within)

    def token_types(self, index: int) -> Positions | None:
        source, within = self.place(index)
        return self.datasets[source].token_types(within)

    def pixels(self, index: int) -> npt.NDArray[np.float32] | None:
        source, within = self.place(index)
        return self.datasets[source].pixels(within)

    def place(self, index: int) -> tuple[int, int]:
        """The number of the dataset that has a sequence, and the sequence's index there."""
        within = index
        for source, one in enumerate(self.datasets):
            if 0 <= within < one.num_sequences:
                return source, within
            within -= one.num_sequences
        raise IndexError(f"sequence {index} of {self.num_sequences}")

    def summary(self) -> str:
        found = (f"{label} {one.summary()}" for label, one in zip(self.labels, self.datasets, strict=True))
        return f"{plural(self.num_sequences, 'sequence')}: {' | '.join(found)}"

    def digested(self) -> Iterator[tuple[str, Stored]]:
        for number, one in enumerate(self.datasets):
            yield from ((f"{number}.{name}", stored) for name, stored in one.digested())
