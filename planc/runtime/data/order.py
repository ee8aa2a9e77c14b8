"""The order of samples: a function of seed and position, never of the mesh."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

SampleIds = npt.NDArray[np.int64]

MAX_IDS_IN_MEMORY = 1 << 20
"""The longest order of an epoch in memory; a larger one is sorted bucket by bucket. A power of 2."""
_DRAWN_AT_ONCE = 1 << 20


def epoch_permutation(num_sequences: int, *, seed: int, epoch: int, stream: int = 0) -> SampleIds:
    """Every sequence id once, in the order of an epoch. Each source of a mixture has a stream of its own.

    Sorts raw PCG64 output rather than calling `Generator.permutation`: numpy keeps the raw stream and the
    seeding for good, but may change what a Generator draws (NEP 19), and a resumed run must see the same
    order.
    """
    keys = _random(seed, epoch, stream).random_raw(num_sequences)
    permutation = np.argsort(keys, kind="stable").astype(np.int64)
    permutation.setflags(write=False)
    return permutation


def _random(seed: int, epoch: int, stream: int) -> np.random.PCG64:
    return np.random.PCG64(np.random.SeedSequence([seed, epoch, stream] if stream else [seed, epoch]))


def sources_of(sample_ids: SampleIds, sizes: Sequence[int]) -> SampleIds:
    """The number of the source of each sequence, where sources of these sizes are joined."""
    return np.searchsorted(np.cumsum(sizes), sample_ids, side="right")


def _by_source(sample_ids: SampleIds, sizes: Sequence[int]) -> SampleIds:
    return np.bincount(sources_of(sample_ids, sizes), minlength=len(sizes))


@dataclass(slots=True)
class Epoch:
    """The order of one epoch, `epoch_permutation`, of which no more than `bucket_size` ids are in memory.

    A permutation sorts sequences by their keys. So it is a row of buckets, each of the sequences whose keys
    begin with the same bits, and drawing all keys again gives any one bucket.
    """

    num_sequences: int
    seed: int
    epoch: int
    bucket_size: int = MAX_IDS_IN_MEMORY
    stream: int = 0
    _ends: SampleIds | None = None
    """Ends of the buckets in the permutation; None until keys have been counted."""
    _bucket: tuple[int, SampleIds] | None = None
    """The number and the ids of the bucket used last."""
    _earlier: tuple[int, SampleIds] | None = None
    """The number of a bucket, and the ids of each source in all buckets before it."""

    def ids(self, offset: int, *, count: int) -> SampleIds:
        """Up to `count` ids [<= count] of the permutation from `offset` on, at least one."""
        number, begin = self._place(offset)
        if self._bucket is None or self._bucket[0] != number:
            self._bucket = (number, self._sorted(number))
        return self._bucket[1][offset - begin : offset - begin + count]

    def counts(self, offset: int, *, sizes: Sequence[int]) -> SampleIds:
        """Count the first `offset` ids by source. Its sizes must always be the same."""
        number, begin = self._place(offset)
        if self._earlier is None or self._earlier[0] != number:
            earlier = np.zeros(len(sizes), dtype=np.int64)
            for first, numbers, _ in self._drawn() if number else ():
                earlier += _by_source(np.flatnonzero(numbers < number) + first, sizes)
            self._earlier = (number, earlier)
        return self._earlier[1] + _by_source(self.ids(begin, count=offset - begin), sizes)

    def _place(self, offset: int) -> tuple[int, int]:
        """The bucket that has the id at `offset`, and where it begins."""
        if self._ends is None:
            self._ends = self._count()
        number = int(np.searchsorted(self._ends, offset, side="right"))
        return number, int(self._ends[number - 1]) if number else 0

    @property
    def _num_bits(self) -> int:
        """The bits that number the buckets."""
        return max(0, self.num_sequences - 1).bit_length() - (self.bucket_size.bit_length() - 1)

    def _count(self) -> SampleIds:
        if self._num_bits <= 0:
            return np.array([self.num_sequences], dtype=np.int64)
        sizes = np.zeros(1 << self._num_bits, dtype=np.int64)
        for _, numbers, _ in self._drawn():
            sizes += np.bincount(numbers, minlength=len(sizes))
        return np.cumsum(sizes)

    def _sorted(self, number: int) -> SampleIds:
        if self._num_bits <= 0:
            return epoch_permutation(self.num_sequences, seed=self.seed, epoch=self.epoch, stream=self.stream)
        keys, ids = [], []
        for first, numbers, drawn in self._drawn():
            found = np.flatnonzero(numbers == number)
            keys.append(drawn[found])
            ids.append(found + first)
        order = np.argsort(np.concatenate(keys), kind="stable")
        return np.concatenate(ids)[order].astype(np.int64)

    def _drawn(self) -> Iterator[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.uint64]]]:
        """All keys in parts: the first sequence of a part, the bucket of each key, the keys."""
        source = _random(self.seed, self.epoch, self.stream)
        shift = np.uint64(64 - self._num_bits)
        for first in range(0, self.num_sequences, _DRAWN_AT_ONCE):
            keys = source.random_raw(min(_DRAWN_AT_ONCE, self.num_sequences - first))
            yield first, (keys >> shift).astype(np.int64), keys


@dataclass(frozen=True, slots=True)
class SampleOrder:
    """The endless order of samples: epoch after epoch, each its own permutation of all sequences."""

    num_sequences: int
    seed: int
    sizes: tuple[int, ...] = ()
    """The sequences of each source that is joined; empty for a single source."""
    _epochs: dict[int, Epoch] = field(default_factory=dict, init=False, repr=False, compare=False)

    def sample_ids(self, start: int, *, count: int) -> SampleIds:
        """Sequence ids [count] at the global positions from `start` on."""
        ids = np.empty(count, dtype=np.int64)
        filled = 0
        while filled < count:
            epoch, offset = divmod(start + filled, self.num_sequences)
            part = self._epoch(epoch).ids(offset, count=count - filled)
            ids[filled : filled + len(part)] = part
            filled += len(part)
        return ids

    def consumed(self, position: int) -> tuple[int, ...]:
        if not self.sizes:
            return ()
        epoch, offset = divmod(position, self.num_sequences)
        begun = self._epoch(epoch).counts(offset, sizes=self.sizes)
        return tuple(epoch * size + int(more) for size, more in zip(self.sizes, begun, strict=True))

    def fresh(self) -> SampleOrder:
        return SampleOrder(self.num_sequences, self.seed, self.sizes)

    def _epoch(self, epoch: int) -> Epoch:
        if epoch not in self._epochs:
            for stale in [other for other in self._epochs if abs(other - epoch) > 1]:
                del self._epochs[stale]
            self._epochs[epoch] = Epoch(self.num_sequences, self.seed, epoch)
        return self._epochs[epoch]


@dataclass(frozen=True, slots=True)
class PairOrder:
    """The order of pairs, each of which is two sequences in a row: 2p and 2p + 1 of pair p."""

    pairs: SampleOrder

    @property
    def num_sequences(self) -> int:
        return 2 * self.pairs.num_sequences

    @property
    def sizes(self) -> tuple[int, ...]:
        return ()

    def sample_ids(self, start: int, *, count: int) -> SampleIds:
        """Sequence ids [count] at the global positions from `start` on."""
        first, last = start // 2, (start + count + 1) // 2
        numbers = self.pairs.sample_ids(first, count=last - first)
        ids = np.stack((2 * numbers, 2 * numbers + 1), axis=1).ravel()
        return ids[start - 2 * first :][:count]

    def consumed(self, position: int) -> tuple[int, ...]:
        return ()

    def fresh(self) -> PairOrder:
        return PairOrder(self.pairs.fresh())


class Order(Protocol):
    """An endless order of sequences, a function of seed and position."""

    @property
    def num_sequences(self) -> int: ...
    @property
    def sizes(self) -> tuple[int, ...]:
        """The sequences of each source of a mixture; empty for a single source."""
        ...

    def sample_ids(self, start: int, *, count: int) -> SampleIds: ...
    def consumed(self, position: int) -> tuple[int, ...]:
        """Count the sequences of each source of a mixture that come before a position."""
        ...

    def fresh(self) -> Order:
        """The same order for another thread: an order keeps the part that it was last asked for."""
        ...


def rank_positions(
    step_start: int, *, global_batch: int, micro_batch: int, dp_size: int, dp_rank: int, micro_step: int
) -> range:
    """The global positions that one data-parallel rank takes in one micro step, `micro_batch` of them.

    A step covers [step_start, step_start + global_batch); each micro step deals its share to the ranks in
    turn.
    """
    share = dp_size * micro_batch
    assert global_batch % share == 0
    assert 0 <= dp_rank < dp_size
    assert 0 <= micro_step < global_batch // share
    first = step_start + micro_step * share + dp_rank * micro_batch
    return range(first, first + micro_batch)
